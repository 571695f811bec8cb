"""From somebody's net and images to a surrogate and an explainer."""
