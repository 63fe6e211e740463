// Package neighbours runs other projects' programs in clusters that peer: an ingress controller
// whose routes lead to Services with pods abroad, the controller that gives nodes to a cloud's load
// balancers, queues for Jobs, and a firewall for NetworkPolicies.
package neighbours
