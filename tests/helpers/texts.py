"""Prompts, and strings that tokenizers find hard."""

PROMPTS = [
    "What is the capital of France?",
    "Write a Python function that reverses a linked list.",
    "If a train travels 60 km in 45 minutes, how fast is it in km/h?",
    "Explain photosynthesis to a child of ten.",
    "Translate 'good morning' into Spanish, French and German.",
    "Give me three tips for sleeping better.",
    "Why is the sky blue?",
    "Summarise the plot of Romeo and Juliet in two sentences.",
    "What is 17 times 23?",
    "Write a haiku about autumn.",
    "List the planets of the solar system in order.",
    "What does HTTP stand for, and what is it for?",
    "Suggest a name for a small bakery.",
    "How do vaccines work?",
    "Write SQL that counts the orders of each customer.",
    "What is the difference between a virus and a bacterium?",
    "Describe a sunset over the sea.",
    "Fix this sentence: he go to school every days.",
    "Who wrote Pride and Prejudice?",
    "How do I boil an egg?",
]


STRINGS = [
    "Hello, world!",
    "  two  spaces\tand\n\n newlines \r\n",
    "1234567890 3.14 1e-9 ２３ Ⅷ ½ ²",
    "I'm you're we've they'll he'd she's",
    "def f(x):\n    return x**2  # square",
    "Grüße aus Köln, ça va? Ελληνικά, русский, 日本語, 한국어, العربية, हिन्दी",
    "😀👩‍👩‍👧‍👦🇫🇷 \u200b\u00a0\ufeff",
    "<|im_start|>user\nhi<|im_end|><|endoftext|><repo_name><|im_start",
    "\x00\x01\x04\x06\x7f",
    "",
    "a" * 1000,
]
