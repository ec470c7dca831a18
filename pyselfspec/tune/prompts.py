"""What the model is asked when nobody brings prompts of his own: everyday requests, each a form
with a subject put in. Pure.

What counts is the text that the model answers with, so the questions only have to be many and of
many kinds.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator, Sequence

ABOUT = (  # a subject
    "What is {}?",
    "Explain {} to a child.",
    "Explain in a few sentences how {} works.",
    "Why is {} important?",
    "What are the advantages and disadvantages of {}?",
    "Give me five tips about {}.",
    "Write a short story about {}.",
    "Write a poem about {}.",
    "Write a paragraph about the history of {}.",
    "What should a beginner know about {}?",
    "What are common mistakes with {}?",
    "List ten facts about {}.",
    "Write a short blog post about {}.",
    "Write an email to a friend about {}.",
    "What questions do people often ask about {}? Answer three of them.",
    "How can I learn more about {}?",
    "Tell me something surprising about {}.",
    "Make a plan for a week that is all about {}.",
    "Describe {} in detail.",
    "Write a dialogue between two friends who talk about {}.",
    "Compare {} with {}.",
    "How are {} and {} connected?",
    "I have a question about {}. What is most important to understand?",
    "Write an introduction to a talk about {}.",
    "Write a JSON object with four fields that describes {}.",
    "Write a letter to a newspaper about {}.",
    "What would the world be like without {}?",
    "Write three multiple choice questions about {}, with answers.",
    "Write a product description for a book about {}.",
    "Make a table with facts about {}.",
)
SUBJECTS = (
    "the solar system", "photosynthesis", "volcanoes", "the human heart", "electric cars",
    "coffee", "chess", "gardening", "the ocean", "rain", "bees", "wolves", "cats", "horses",
    "the Roman Empire", "the French Revolution", "the Industrial Revolution", "ancient Egypt",
    "democracy", "inflation", "saving money", "taxes", "insurance", "renting a flat",
    "a job interview", "a good résumé", "public speaking", "time management", "teamwork",
    "sleep", "a healthy diet", "running", "yoga", "swimming", "first aid", "headaches", "stress",
    "friendship", "loneliness", "happiness", "courage", "a lost key", "a lighthouse", "a dragon",
    "a robot who learns to paint", "a small village", "a train journey", "winter", "spring",
    "the moon", "gravity", "light", "sound", "electricity", "magnets", "batteries", "solar panels",
    "wind power", "nuclear power", "recycling", "climate change", "plastic waste", "forests",
    "rivers", "deserts", "earthquakes", "hurricanes", "dinosaurs", "evolution", "genes", "vaccines",
    "bacteria", "the brain", "memory", "dreams", "music", "the piano", "painting", "photography",
    "the theatre", "novels", "poetry", "libraries", "museums", "language", "the alphabet",
    "mathematics", "fractions", "probability", "statistics", "geometry", "computers",
    "the internet", "passwords", "search engines", "databases", "programming",
    "open-source software",
    "machine learning", "social media", "mobile phones", "video games", "football", "tennis",
    "cycling", "hiking", "camping", "travelling alone", "airports", "trains", "ships", "bridges",
    "skyscrapers", "houses", "kitchens", "bread", "cheese", "chocolate", "tea", "soup", "pasta",
    "breakfast", "birthday parties", "weddings", "school", "homework", "teachers", "universities",
    "parents", "grandparents", "babies", "dogs", "birds", "fish", "insects", "trees", "flowers",
    "clothes", "shoes", "money", "banks", "shops", "advertising", "newspapers", "laws", "courts",
    "the police", "hospitals", "doctors", "medicine", "clocks", "calendars", "maps", "mountains",
)  # fmt: skip
CODE = (  # a task
    "Write a Python function that {}.",
    "Write a Python function that {}. Add a docstring and tests.",
    "Write a JavaScript function that {}.",
    "Write a class in Python that {}, with comments.",
    "Show me step by step how to write code that {}.",
    "Write a C function that {} and explain it.",
)
TASKS = (
    "sorts a list of numbers", "finds the largest number of a list", "counts the words of a text",
    "reverses a text", "checks whether a number is prime", "reads a CSV file",
    "removes duplicates from a list", "merges two sorted lists", "computes an average",
    "finds the longest word", "converts Celsius to Fahrenheit", "checks a password",
    "keeps a list of tasks", "parses a date", "counts how often each letter occurs",
    "computes Fibonacci numbers", "searches a sorted list", "downloads a web page",
    "writes a log file", "stores users in a dictionary", "rolls dice", "draws a triangle of stars",
    "computes the factorial of a number", "flattens a nested list", "checks balanced brackets",
    "computes the greatest common divisor", "stores items in a stack", "models a bank account",
    "validates an e-mail address", "splits a text into sentences", "transposes a matrix",
)  # fmt: skip
ON_A_PASSAGE = (
    "Summarize this text:\n\n{}",
    "Summarize this text in one sentence:\n\n{}",
    "What is this text about?\n\n{}",
    "Rewrite this text in simpler words:\n\n{}",
    "Correct the mistakes in this text:\n\n{}",
    "List the most important points of this text:\n\n{}",
    "Continue this text:\n\n{}",
    "Ask three questions about this text and answer them:\n\n{}",
)
SHARES = (7, 1, 2)  # of requests about subjects, for code, on passages
N_PASSAGE = 600  # characters, about
N_PARTS = 16  # of all requests, one is held out


def requests(seed: int, passages: Sequence[str] = ()) -> Iterator[str]:
    """Requests without end, the same for the same seed. passages: none: no requests on them."""
    rng = random.Random(seed)
    shares = SHARES if passages else (*SHARES[:2], 0)
    while True:
        (kind,) = rng.choices((ABOUT, CODE, ON_A_PASSAGE), shares)
        form = rng.choice(kind)
        if kind is ON_A_PASSAGE:
            yield form.format(rng.choice(passages))
        else:
            subjects = SUBJECTS if kind is ABOUT else TASKS
            yield form.format(*rng.sample(subjects, 2))


def cut(text: str, n_chars: int = N_PASSAGE) -> list[str]:
    """Passages of about this length, whole paragraphs where these are short enough."""
    found: list[str] = []
    passage = ""
    for paragraph in text.split("\n\n"):
        paragraph = paragraph.strip()
        if passage and len(passage) + len(paragraph) > n_chars:
            found.append(passage)
            passage = ""
        passage = f"{passage}\n\n{paragraph}".strip()[: 2 * n_chars]
    return [*found, passage] if passage else found


def is_held_out(request: str) -> bool:
    """Whether a request is for measuring and never for training."""
    return zlib.crc32(request.encode()) % N_PARTS == 0
