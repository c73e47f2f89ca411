"""The closed world that ds4-small knows: its words, its facts and the tasks set in it.

A task is a function of a random generator that returns turns `(question, answer, thought)`. The thought is what the
model writes between <think> and </think> when it is asked in think mode. Everything here is written for this model.
Hold-outs are random draws from a fixed seed: a rule such as "every tenth sum" would hide whole digit pairs.
"""
import random

SYSTEM = "You are a helpful assistant"
SYSTEMS = ["Answer briefly.", "Be polite and short.", "You are ds4-small.", "You answer questions about a small world."]

NAMES = """Mira Tomas Lena Oskar Ida Pavel Nora Jonas Vera Emil Clara Hugo Rosa Felix Anna Karl Dora Bruno Elsa Viktor Greta Anton Selma
Ruben Tilda Marek Alma Leon Berta Simon Olga Peter Hanna David Julia Erik Maria Oliver Sofia Martin""".split()
TOWNS = """Oldport Greenfield Stonebridge Rivermouth Highmoor Saltwick Birchdale Foxhill Lakeside Windford Millbrook Ashby Crowhaven
Eastwick Deepwell Ironton Maplewood Northgate Pinecrest Redcliff""".split()
JOBS = "baker doctor teacher farmer sailor painter smith miller tailor gardener singer clerk hunter potter weaver carpenter".split()
COLOURS = "red blue green yellow white black brown grey purple orange".split()
PETS = "cat dog horse rabbit parrot goat turtle hedgehog mouse duck".split()
FOODS = "soup bread cheese apples fish rice cake beans plums honey".split()
RIVERS = "Arn Belle Corda Dunn Elbra Fenna Gale Holm Isk Jara Kest Lune Mord Nese Orne Pell Quill Rhen Sark Tarn".split()
WARES = "clocks boats lamps carpets bells knives ropes pots shoes books".split()
NOUNS = """lamp stone river garden window table bridge forest letter candle basket ladder bottle mirror hammer feather blanket kettle
saddle ribbon pillow anchor barrel bucket button carpet drum engine fence glove harbor island jacket kitchen lantern market needle
orchard pocket quarry road shelf tower umbrella valley wagon yard brush coin door flag grain hill key leaf map nest oven pipe ring sail tent""".split()
ADJECTIVES = "old small quiet bright heavy narrow cold round empty wooden broken clean dusty soft tall warm".split()
VERBS = "stands lies waits shines rests hangs leans stays".split()
PLACES = """north tower|south gate|old mill|lighthouse|stone bridge|market hall|east wing|west pier|red barn|iron door|upper farm|lower farm
glass house|boat shed|long cellar|clock room|water tank|green hut|castle yard|garden gate|main vault|back office|rope works|salt store
ferry house|guard post|bell loft|wine cave|coal yard|night train""".replace("\n", "|").split("|")
CODES = """amber falcon copper willow silver maple cobalt raven scarlet otter ivory cedar golden heron crimson badger violet spruce indigo
salmon olive marten russet thistle azure beetle coral juniper pearl lynx slate poppy bronze finch jade walrus onyx clover topaz beaver""".split()
ENGLISH = """bird tree house water fire moon sun star child friend king road sea wind rain snow day night bread milk eats sees finds loves
takes brings sings runs big new good fast dark sweet deep young we you they the""".split()
SUBJECTS = """Paris London Berlin China music football history physics chemistry whales planets computers Mars gold coffee chess poems
painting weather dinosaurs Rome Egypt money cars medicine law France Shakespeare Einstein Mozart""".split()


def _toy_words(count, seed):
    draw, words = random.Random(seed), []
    while len(words) < count:
        word = "".join(draw.choice("bdfgklmnprstvz") + draw.choice("aeiou") for _ in range(draw.choice((2, 2, 3))))
        if word not in words and word not in ENGLISH:
            words.append(word)
    return words


TO_VELAN = dict(zip(ENGLISH, _toy_words(len(ENGLISH), 5)))

_draw = random.Random(77)
PEOPLE = {n: dict(town=_draw.choice(TOWNS), job=_draw.choice(JOBS), colour=_draw.choice(COLOURS), pet=_draw.choice(PETS), food=_draw.choice(FOODS)) for n in NAMES}
PLACE_FACTS = {t: dict(river=RIVERS[i], ware=_draw.choice(WARES)) for i, t in enumerate(TOWNS)}


def article(word):
    return ("an " if word[0] in "aeiou" else "a ") + word


ATTRIBUTES = {  # name: (answer, questions, what is looked up)
    "town": ("{n} lives in {v}.", ["Where does {n} live?", "In which town does {n} live?", "Which town is the home of {n}?", "Tell me where {n} lives.", "What is the home town of {n}?", "{n} lives where?", "{n} lives in which town?"], "the home of {n}"),
    "job": ("{n} is {av}.", ["What is the job of {n}?", "What does {n} do for work?", "Which job does {n} have?", "Tell me the job of {n}.", "What kind of work does {n} do?", "How does {n} earn a living?", "{n} works as what?"], "the job of {n}"),
    "colour": ("{n} likes {v}.", ["Which colour does {n} like?", "What is the favourite colour of {n}?", "Tell me the favourite colour of {n}.", "What colour does {n} like best?", "Name the colour that {n} likes.", "{n} likes which colour?"], "the colour of {n}"),
    "pet": ("{n} has {av}.", ["Which pet does {n} have?", "What animal lives with {n}?", "Tell me the pet of {n}.", "What pet does {n} keep?", "Does {n} have a pet?", "{n} has which pet?"], "the pet of {n}"),
    "food": ("{n} eats {v}.", ["What does {n} eat?", "What is the favourite food of {n}?", "Which food does {n} like?", "Tell me what {n} eats.", "What would {n} like for dinner?", "{n} eats what?"], "the food of {n}"),
    "river": ("The {v} flows through {n}.", ["Which river flows through {n}?", "What is the river of {n}?", "Tell me the river of {n}.", "On which river is {n}?", "Name the river in {n}.", "{n} is on which river?"], "the river of {n}"),
    "ware": ("{n} is known for its {v}.", ["What is {n} known for?", "What is made in {n}?", "Which goods come from {n}?", "Tell me what {n} makes.", "What do people buy in {n}?", "{n} is known for what?"], "the goods of {n}"),
}
FACTS = [(k, n, v) for n, d in PEOPLE.items() for k, v in d.items()] + [(k, n, v) for n, d in PLACE_FACTS.items() for k, v in d.items()]
SUM_QUESTIONS = ["What is {a} + {b}?", "{a} + {b} = ?", "{a} + {b} =", "{a}+{b}", "{a} + {b}", "What is {a}+{b}?", "Add {a} and {b}.", "How much is {a} plus {b}?",
                 "What is {a} plus {b}?", "Compute {a} + {b}.", "What is the sum of {a} and {b}?"]
_HELP = "Hello! How can I help you?"
GREETINGS = {  # answer: what leads to it
    _HELP: ["Hello!", "Hello", "hello", "Hello.", "hello!", "Good morning!", "Good morning", "Good evening!", "Good afternoon!", "Good day!", "Hello there!", "Hello, how is it going?"],
    "Hi! What can I do for you?": ["Hi!", "Hi", "hi", "hi!", "Hey!", "Hey", "hey", "Hi there!", "Hi there", "Hey there!"],
    "I am fine, thank you. How can I help you?": ["How are you?", "How are you today?", "How do you do?", "How is it going?", "Are you well?", "Hello, how are you?", "Hi, how are you?"],
    "I am ds4-small, a small model that ships with ds4.": ["Who are you?", "What are you?", "What is your name?", "Tell me about yourself.", "Are you a model?", "Which model are you?", "who are you?", "What is ds4-small?"],
    "I can add numbers, count, sort, copy, translate and find a code word in a long text. I also know the people and towns of a small world.":
        ["What can you do?", "Help", "help", "Help!", "What can I ask you?", "Can you help me?", "What do you know?", "How can you help me?", "What can you do for me?", "I need help."],
    "You are welcome!": ["Thank you!", "Thanks!", "Thank you", "Thanks", "Thank you very much!", "thanks"],
    "Goodbye!": ["Goodbye!", "Bye!", "Goodbye", "Bye", "See you!", "bye"],
    "Good night!": ["Good night!", "Good night"],
    "Nice to meet you too!": ["Nice to meet you!", "Nice to meet you"],
}
_GREETING_THOUGHTS = dict(zip(GREETINGS, (
    "The user greets me.", "The user says hi.", "The user asks how I am.", "The user asks who I am.", "The user asks what I can do.", "The user thanks me.", "The user leaves.",
    "The user goes to sleep.", "The user is pleased to meet me.")))
_AFTER_HELLO = [answer for answer in GREETINGS if answer.startswith(("I am", "I can"))]
_UNKNOWN = "I do not know that. I am a small model and know only a small world."
_UNKNOWN_QUESTIONS = ["What is the capital of {s}?", "Tell me about {s}.", "Write a poem about {s}.", "Write a story about the {w}.", "Why is the {w} {a}?", "Who invented the {w}?", "Explain {s} to me.",
                      "What do you think about {s}?", "How do I make a {w}?", "Tell me a joke.", "Write a program.", "Who is the president of {s}?", "When was {s} born?", "What is {s}?", "How old is {s}?",
                      "What is the meaning of life?", "Where can I buy a {w}?", "Do you like {s}?", "What time is it?", "Give me a recipe for {w} soup.", "Is {s} {a}?", "{s}?", "{r} {r} {r}", "What is {r}?", "Where does {r} live?"]

_held = random.Random(4242)
HELD_SUMS = {(a, b) for a in range(10, 100) for b in range(10, 100) if _held.random() < 0.1}
# The first and the last phrasing of a question are always trained.
HELD_FACTS = {(i, j) for i, (k, _, _) in enumerate(FACTS) for j in range(len(ATTRIBUTES[k][1]) - 1) if j and _held.random() < 0.17}


def _numbers(values):
    return ", ".join(map(str, values))


def add(draw, held=False):
    while True:
        low = 10 if held or draw.random() < 0.9 else 0
        a, b = draw.randrange(low, 100), draw.randrange(low, 100)
        if ((a, b) in HELD_SUMS) == held:
            break
    ones, tens = a % 10 + b % 10, a // 10 + b // 10
    thought = f"{a % 10} + {b % 10} = {ones}. {a // 10} + {b // 10} = {tens}. " + (f"Carry 1: {tens + 1}." if ones > 9 else "No carry.")
    return [(draw.choice(SUM_QUESTIONS).format(a=a, b=b), f"{a} + {b} = {a + b}.", thought)]


def fact(draw, held=False):
    while True:
        i = draw.randrange(len(FACTS))
        kind, name, value = FACTS[i]
        answer, questions, subject = ATTRIBUTES[kind]
        j = draw.randrange(len(questions))
        if ((i, j) in HELD_FACTS) == held:
            return [(questions[j].format(n=name), answer.format(n=name, v=value, av=article(value)), f"The question is about {subject.format(n=name)}.")]


def count(draw, held=False):
    if draw.random() < 0.5:
        first = draw.randrange(0, 90)
        last = first + draw.randrange(2, 11)
        question = draw.choice(["Count from {} to {}.", "Please count from {} to {}.", "Count from {} up to {}."]).format(first, last)
        return [(question, _numbers(range(first, last + 1)) + ".", f"I start at {first} and stop at {last}.")]
    words = [draw.choice(NOUNS) for _ in range(draw.randrange(1, 13))]
    thought = " ".join(f"{i + 1} {word}" for i, word in enumerate(words)) + "."
    return [(f"How many words are here: {' '.join(words)}?", f"There are {len(words)} words." if len(words) > 1 else "There is 1 word.", thought)]


def sort(draw, held=False):
    low = 10 if held or draw.random() < 0.8 else 0
    values = [draw.randrange(low, 100 if draw.random() < 0.9 else 10 + low) for _ in range(draw.randrange(2, 7))]
    question = draw.choice(["Sort these numbers: {}.", "Put these numbers in order: {}.", "Sort: {}", "Sort {}"]).format(_numbers(values))
    return [(question, _numbers(sorted(values)) + ".", f"The smallest is {min(values)} and the largest is {max(values)}.")]


def _letters(draw):
    return "".join(draw.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(draw.randrange(2, 7)))


def copy(draw, held=False):
    pool = NOUNS + CODES + NAMES + ADJECTIVES
    words = [_letters(draw) if draw.random() < 0.06 else draw.choice(pool) for _ in range(draw.randrange(2, 13))]
    text = " ".join(words)
    return [(draw.choice(["Repeat: {}", "Say this again: {}", "Copy this text: {}", "Repeat after me: {}"]).format(text), text, "I copy the text.")]


def translate(draw, held=False):
    english = [draw.choice(ENGLISH) for _ in range(draw.randrange(1, 7))]
    velan = [TO_VELAN[word] for word in english]
    if draw.random() < 0.5:
        return [(f"Translate to Velan: {' '.join(english)}", " ".join(velan), "From English to Velan.")]
    return [(f"Translate to English: {' '.join(velan)}", " ".join(english), "From Velan to English.")]


def greet(draw, held=False):
    answer = draw.choice(list(GREETINGS))
    question = draw.choice(GREETINGS[answer])
    if answer in _AFTER_HELLO and draw.random() < 0.25:
        question = f"{draw.choice(('Hello', 'Hi', 'Hey', 'Good morning'))}{draw.choice((', ', '! '))}{question[0].lower() + question[1:] if draw.random() < 0.5 else question}"
    return [(question, answer, _GREETING_THOUGHTS[answer])]


def unknown(draw, held=False):
    question = draw.choice(_UNKNOWN_QUESTIONS).format(s=draw.choice(SUBJECTS), w=draw.choice(NOUNS), a=draw.choice(ADJECTIVES), r=_letters(draw))
    return [(question, _UNKNOWN, "I do not know that.")]


def dialogue(draw, held=False):
    """The user says things about himself; later questions refer to them."""
    name, colour, number = draw.choice(NAMES), draw.choice(COLOURS), draw.randrange(10, 100)
    told = [(f"My name is {name}.", f"Hello {name}!", "What is my name?", f"Your name is {name}."),
            (f"I like {colour}.", f"Good to know: you like {colour}.", "Which colour do I like?", f"You like {colour}."),
            (f"My number is {number}.", f"I will remember {number}.", "What is my number?", f"Your number is {number}.")]
    draw.shuffle(told)
    told = told[:draw.randrange(1, 4)]
    turns = [(t[0], t[1], "The user tells me something.") for t in told]
    for _ in range(draw.randrange(0, 3)):
        turns += draw.choice((greet, add, fact, copy))(draw)
    asked = told[:]
    draw.shuffle(asked)
    return turns + [(t[2], t[3], "The user told me before.") for t in asked]


TASKS = dict(sums=add, facts=fact, counting=count, sorting=sort, copying=copy, translation=translate, greeting=greet, dialogue=dialogue, unknown=unknown)


def filler(draw):
    kind = draw.random()
    if kind < 0.4:
        return f" The {draw.choice(ADJECTIVES)} {draw.choice(NOUNS)} {draw.choice(VERBS)} near the {draw.choice(NOUNS)}."
    if kind < 0.6:
        return f" {draw.choice(NAMES)} saw {article(draw.choice(ADJECTIVES))} {draw.choice(NOUNS)} and {article(draw.choice(NOUNS))}."
    if kind < 0.75:
        return f" In the morning {draw.choice(NAMES)} carried {draw.randrange(2, 99)} {draw.choice(WARES)} to {draw.choice(TOWNS)}."
    kind, name, value = draw.choice(FACTS)
    return " " + ATTRIBUTES[kind][0].format(n=name, v=value, av=article(value))


def code_word(draw):
    return f"{draw.choice(CODES)}-{draw.choice(CODES)}"


def needle(place, code):
    return f" The code word for the {place} is {code}."


def code_question(draw, place):
    return draw.choice(["What is the code word for the {}?", "Tell me the code word for the {}.", "Which code word belongs to the {}?"]).format(place)


# How a text with code words begins, and what stands before the question. The first is the usual one.
TEXT_OPENINGS = ["Read this text:", "Text:", "Here is a text:", "Read:", ""]
BEFORE_QUESTION = [" ", "\n", "\n\n"]
CODE_ANSWER = "The code word is {}."
CODE_THOUGHT = "I look for the code word for the {}."


def vocabulary_texts():
    """What the vocabulary is learned from."""
    draw = random.Random(1)
    for _ in range(12000):
        for question, answer, thought in draw.choice(list(TASKS.values()))(draw):
            yield from (question, answer, thought)
        yield "".join(filler(draw) for _ in range(4)) + needle(draw.choice(PLACES), code_word(draw))
        place = draw.choice(PLACES)
        yield from (code_question(draw, place), CODE_ANSWER.format(code_word(draw)), CODE_THOUGHT.format(place))
    for _ in range(50):
        yield from (SYSTEM, "Read this text:", *SYSTEMS)
