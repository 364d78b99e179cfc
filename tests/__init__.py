"""Tests, one folder per part, and what they share."""
