"""Runs the roles of a job as pods of Kubernetes.

pods_file   what a user says about pods                          docs/formats.md, "Pods file"
manifests   a job as objects of Kubernetes
site        prints them, or has them applied and watched
client      applies them by kubectl, and waits; a program
follower    shows and keeps the pods' logs
absent      finds roles without a pod
pod         a pod as the cluster describes it
"""

from __future__ import annotations
