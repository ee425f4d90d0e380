"""Compare methods: by length, by task, and in a search."""
