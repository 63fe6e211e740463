// Package fabric is the process on each node. [Run] makes the node's tunnels as the custom
// resources say, and publishes this cluster on the node's LANs and looks for others there.
// It brings tunnel and discovery together, which know nothing of each other or of Kubernetes.
package fabric
