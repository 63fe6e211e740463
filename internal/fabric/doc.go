// Package fabric is the process on each node. [Run] makes the node's tunnels by the custom
// resources, publishes this cluster on the node's LANs and finds others there.
// It connects tunnel and discovery, which depend neither on each other nor on Kubernetes.
package fabric
