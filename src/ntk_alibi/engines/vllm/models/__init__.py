"""Classes that vLLM makes in the place of its own; they import vLLM."""
