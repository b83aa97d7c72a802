"""Features on the sphere: each example moves in a plane of its own, by two scalars."""
