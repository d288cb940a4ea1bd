"""From Pods and Nodes to the PodLocators that should exist, and the writes that get there."""
