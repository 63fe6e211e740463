// Package client has the clients of this project's servers: of a cluster's own agent, for
// administrators and their programs, and of other clusters' agents, for the agent itself.
//
// Programs that drive Entente begin with [DialAdmin], which reaches the agent
// through the Kubernetes API server with only a kubeconfig, and returns the AdminService of
// proto/entente/v1. [Admin] adds what takes several calls: lists of all pages, [Admin.Events] and
// [Admin.WaitForPeering]. [ReasonOf] returns why a call failed. docs/api.md has the reasons, and
// the same through REST and manifests.
//
// The rest is the agent's: [Join] redeems a token, [Peering] negotiates
// contracts, [RunSession] exchanges states with a peer.
package client
