"""An object made by the user's module itself."""

from handlers import Counter

shared = Counter(step=5)
