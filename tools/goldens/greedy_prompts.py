"""The 24 prompts of make_greedy.py: English, Chinese, code, emoji, other scripts, chat, and four long ones."""

STORY = (
    "The lighthouse stood at the end of a long spit of sand, and for most of the year nobody came to it except the "
    "keeper, the man who brought the oil, and the gulls. The keeper's name was Hanna Vik. She had taken the post after "
    "her father, who had taken it after his uncle, and she knew the sound of every board in the stair. On clear nights "
    "she wrote letters; on foggy ones she listened. It was on a foggy night in October that she heard the bell of a "
    "ship that had sunk before she was born.")
STORIES = "\n\n".join(STORY.replace("Hanna", name).replace("October", month) for name, month in (
    ("Hanna", "October"), ("Marta", "March"), ("Elsa", "May"), ("Ingrid", "November"), ("Astrid", "January"),
    ("Solveig", "April")))
LEDGER = "\n".join(
    f"{day:02}.03.  received {37 * day % 91 + 5} sacks of flour, sold {17 * day % 23 + 2}, "
    f"price {1.1 + day % 7 * 0.15:.2f} a sack"
    for day in range(1, 29))
MANUAL = "\n".join(
    f"{i}. {verb} the {thing} {how} before step {i + 1}, and write the reading of gauge {chr(64 + i)} into the log; "
    f"if it is above {5 * i + 40}, wait for {i + 2} minutes and read it again."
    for i, (verb, thing, how) in enumerate([
        ("Open", "inlet valve", "slowly"), ("Check", "oil level", "with the engine cold"),
        ("Turn", "crank", "twice by hand"), ("Close", "drain cock", "fully"),
        ("Clean", "air filter", "with dry air"), ("Start", "feed pump", "at low speed"),
        ("Watch", "return line", "for a full minute"), ("Tighten", "belt", "until it gives a thumb's width"),
        ("Light", "pilot flame", "from the side"), ("Raise", "pressure", "by one bar a minute"),
        ("Test", "safety valve", "by pulling its lever"), ("Engage", "clutch", "without load"),
        ("Load", "first stage", "to one half"), ("Load", "second stage", "to one half"),
        ("Balance", "two stages", "by their gauges"), ("Lock", "panel", "with the red key"),
    ], start=1))
PYTHON = '''class IntervalSet:
    """A set of half-open integer intervals, kept sorted and disjoint."""

    def __init__(self):
        self._starts = []
        self._ends = []

    def add(self, start, end):
        """Adds [start, end), merging it with what it touches."""
        if start >= end:
            return
        first = bisect.bisect_left(self._ends, start)
        last = bisect.bisect_right(self._starts, end)
        if first < last:
            start = min(start, self._starts[first])
            end = max(end, self._ends[last - 1])
        self._starts[first:last] = [start]
        self._ends[first:last] = [end]

    def __contains__(self, value):
        i = bisect.bisect_right(self._starts, value) - 1
        return i >= 0 and value < self._ends[i]

    def total(self):
        return sum(end - start for start, end in zip(self._starts, self._ends))

    def remove(self, start, end):
        """Removes [start, end), splitting what it cuts."""
'''
CHAT = ("<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n"
        "<|im_start|>assistant\n")

PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a village between two rivers,",
    "Water boils at 100 degrees Celsius at sea level. On a high mountain it boils",
    "Q: What is 17 + 25?\nA:",
    "List three reasons why the sky is blue:\n1.",
    "Dear Sir or Madam,\n\nI am writing to",
    "从前有一座山，山上有一座庙，庙里有",
    "人工智能的发展改变了我们的生活。首先，",
    "天地玄黄，宇宙洪荒。",
    "def fibonacci(n):\n    \"\"\"Return the n-th Fibonacci number.\"\"\"\n",
    "#include <stdio.h>\n\nint main(void) {\n    for (int i = 0; i < 10; ++i) {\n",
    "SELECT name, COUNT(*) FROM orders\nWHERE",
    "{\"name\": \"Ada\", \"born\": 1815, \"works\": [",
    "I love pizza 🍕 and ice cream 🍦! My favourite",
    "👩‍👩‍👧‍👦 🇩🇪 ❤️‍🔥 🙂🙃 means",
    "Привет, мир! Меня зовут",
    "こんにちは。今日は天気が",
    "صباح الخير، كيف",
    CHAT.format("Give me a recipe for tomato soup."),
    CHAT.format("用一句话介绍一下长城。"),
    STORIES + "\n\nWhat the six keepers had in common was",
    "The ledger of the mill for the month of March reads:\n" + LEDGER + "\nIn total,",
    "Starting the engine\n\n" + MANUAL + "\n\nStopping the engine\n\n1.",
    "import bisect\n\n\n" + "\n\n".join(PYTHON.replace("Interval", name) for name in
                                     ("Interval", "Range", "Span", "Run", "Gap")),
]
assert len(PROMPTS) == 24
