// Package client is what talks to the servers of this project: to a cluster's
// own agent, for administrators and their programs, and to other clusters'
// agents, for the agent itself.
//
// Programs that drive Entente begin with [DialAdmin], which reaches the agent
// through the Kubernetes API server with nothing but a kubeconfig, and gives the
// AdminService of proto/entente/v1. [Admin] adds what takes several calls: lists of
// all pages, [Admin.Events] and [Admin.WaitForPeering]. [ReasonOf] tells why a call
// failed. docs/api.md has the reasons, and the same through REST and manifests.
//
// The rest is the agent's: [Join] redeems a token, [Peering] negotiates
// contracts, [RunSession] exchanges states with a peer.
package client
