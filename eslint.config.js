// The layering of docs/architecture.md as lint rules: each room under src/ imports only the doors (index.ts)
// of the rooms named here, and only the rooms named here may touch the terminal, the environment or koffi.
import js from '@eslint/js';
import tseslint from 'typescript-eslint';

/** Rooms that each room may import from. */
const allowedRooms = {
  error: [],
  gguf: ['error'],
  tokenizer: ['error'],
  sampling: [],
  model: ['error', 'gguf'],
  chat: ['error', 'tokenizer'],
  plan: ['error', 'model', 'gguf'],
  engine: ['error', 'model', 'gguf', 'plan'],
  session: ['error', 'engine', 'sampling', 'tokenizer'],
  cli: ['error', 'gguf', 'tokenizer', 'sampling', 'model', 'chat', 'plan', 'engine', 'session'],
};

const rooms = Object.keys(allowedRooms);

function layering(room) {
  const forbiddenRooms = rooms.filter(
    (other) => other !== room && !allowedRooms[room].includes(other),
  );
  return {
    files: [`src/${room}/**/*.ts`],
    rules: {
      'no-restricted-imports': [
        'error',
        {
          paths:
            room === 'engine'
              ? []
              : [{ name: 'koffi', message: 'only src/engine speaks to native code' }],
          patterns: [
            ...forbiddenRooms.map((other) => ({
              group: [`**/${other}/*`],
              message: `src/${room} does not know src/${other} (docs/architecture.md)`,
            })),
            {
              regex: '^\\.\\./[a-z-]+/(?!index\\.js$)',
              message: 'import another room by its index.js',
            },
          ],
        },
      ],
      ...(room === 'cli'
        ? {}
        : {
            'no-console': 'error',
            'no-restricted-properties': [
              'error',
              { object: 'process', property: 'env', message: 'only src/cli reads the environment' },
              {
                object: 'process',
                property: 'stdout',
                message: 'only src/cli writes to the terminal',
              },
              {
                object: 'process',
                property: 'stderr',
                message: 'only src/cli writes to the terminal',
              },
              { object: 'process', property: 'exit', message: 'only bin/ds4 ends the process' },
            ],
          }),
    },
  };
}

export default tseslint.config(
  {
    ignores: [
      'bin/',
      'dist',
      'build',
      'node_modules',
      'bench/node_modules',
      'models',
      'test/fixtures',
    ],
  },
  js.configs.recommended,
  ...tseslint.configs.strictTypeChecked,
  {
    languageOptions: {
      parserOptions: { projectService: true, tsconfigRootDir: import.meta.dirname },
    },
    rules: {
      '@typescript-eslint/restrict-template-expressions': [
        'error',
        { allowNumber: true, allowBoolean: true },
      ],
      '@typescript-eslint/consistent-type-assertions': ['error', { assertionStyle: 'never' }],
      '@typescript-eslint/no-unnecessary-condition': [
        'error',
        { allowConstantLoopConditions: 'only-allowed-literals' },
      ],
    },
  },
  ...rooms.map(layering),
  {
    // The FFI edge and builders of hostile input need assertions; nothing else does.
    files: ['src/engine/abi.ts', 'test/**/*.ts', 'bench/**/*.ts', 'tools/**/*.ts'],
    rules: {
      '@typescript-eslint/consistent-type-assertions': 'off',
      '@typescript-eslint/no-non-null-assertion': 'off',
    },
  },
  { files: ['**/*.js', '**/*.mjs'], ...tseslint.configs.disableTypeChecked },
  {
    files: ['**/*.mjs'],
    languageOptions: { globals: { process: 'readonly', console: 'readonly' } },
  },
);
