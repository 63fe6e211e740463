// Package netpolicy has both halves of NetworkPolicies that select pods abroad: Leave decides at home what of a
// policy crosses, in home's terms, and Admit translates it at the provider. Both are pure. Home watches a cluster
// and sends the policies of each contract.
//
// A translated policy is never wider than the one at home: what cannot be expressed elsewhere is left out, and
// since a policy lists what is allowed, that closes. Kubernetes adds policies up, so one of a consumer names only
// the consumer's own pods, the aliases of its cluster, the resolver of its names, and the Internet.
package netpolicy
