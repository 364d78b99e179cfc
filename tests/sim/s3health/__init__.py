"""The simulator's third world: whether a bucket is asked, how often, and when again."""
