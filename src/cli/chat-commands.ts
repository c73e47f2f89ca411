export interface ChatCommand {
  readonly name: string;
  readonly usage: string;
  readonly description: string;
}

/** What a chat understands besides messages. The help, the chat itself and docs/cli.md share this list. */
export const chatCommands = [
  { name: '/help', usage: '/help', description: 'List the commands.' },
  { name: '/think', usage: '/think', description: 'Think before answering.' },
  {
    name: '/think-max',
    usage: '/think-max',
    description: 'Think at length; needs a context of 393216 or more.',
  },
  { name: '/nothink', usage: '/nothink', description: 'Answer at once.' },
  {
    name: '/ctx',
    usage: '/ctx TOKENS',
    description: 'Change the context; the conversation is kept.',
  },
  { name: '/reset', usage: '/reset', description: 'Start over with the same model.' },
  {
    name: '/read',
    usage: '/read FILE',
    description: 'Send the text of a file as the next message.',
  },
  { name: '/status', usage: '/status', description: 'Show model, context and settings.' },
  { name: '/quit', usage: '/quit', description: 'Leave. /exit and Ctrl+D do the same.' },
  { name: '/exit', usage: '/exit', description: 'Leave.' },
] as const satisfies readonly ChatCommand[];

export type ChatCommandName = (typeof chatCommands)[number]['name'];
