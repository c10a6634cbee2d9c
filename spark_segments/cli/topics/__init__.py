"""Commands whose noun is a topic: `segments topic …` and `segments describe`."""
