// Package netpolicy is both halves of NetworkPolicies that select pods abroad: Leave says at home
// what of one crosses, in home's terms, and Admit says at the provider what becomes of it there. Both are pure.
// Home watches a cluster and wants the policies of one contract.
//
// A translated policy is never wider than the one at home: what cannot be said elsewhere is left out, and
// since a policy lists what is allowed, that closes. Policies of Kubernetes add up, so one of a consumer's names
// nothing but the consumer's own pods, addresses that stand for its cluster, the resolver of its names, and the Internet.
package netpolicy
