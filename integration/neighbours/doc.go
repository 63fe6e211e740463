// Package neighbours runs, in clusters that peer, programs of other projects that people have in the
// same cluster: an ingress controller whose routes lead to Services of which the pods are abroad, the
// controller that tells a cloud's load balancers of nodes, queues for Jobs, and a firewall for NetworkPolicies.
package neighbours
