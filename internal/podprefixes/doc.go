// Package podprefixes learns the prefixes of a cluster's pods from what is true on the cluster: the
// objects of its network plugin, the configuration of kubeadm, and where its pods are. [Decide] decides,
// a pure function; decoders read what others wrote, and [Reader] is the edge. Nothing that it reads, or
// cannot read, stops anything.
package podprefixes
