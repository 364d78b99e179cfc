"""The simulator's second world: the real SSD log over a disk that forgets, breaks and lies, in virtual time.

`disk` moves bytes in random order, `settings` draws a world, `frames` lends memory, `model` is the oracle,
`world` lives the lives, `operations` is what one caller does, `damage` is what happens to a disk that nobody
watches, `plants` are bugs on purpose, `simulation` runs one seed.
"""
