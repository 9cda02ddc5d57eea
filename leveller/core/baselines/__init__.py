"""What LEVELLER is compared with, behind the same interface."""
