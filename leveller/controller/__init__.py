"""The controller: one a cluster, gives every flow its level."""
