"""Algorithms written in ResCCLang, to learn from and to run."""
