"""The libraries that Theseus is measured against: how each is installed, built and launched."""
