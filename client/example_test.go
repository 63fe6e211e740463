package client_test

import (
	"context"
	"fmt"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/entente-dev/entente/client"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
)

// Reach the agent of the current kubeconfig's cluster and list its peers.
func ExampleDialAdmin() {
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		clientcmd.NewDefaultClientConfigLoadingRules(), nil).ClientConfig()
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	admin, err := client.DialAdmin(ctx, client.AdminConfig{REST: config})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = admin.Close() }()
	resp, err := admin.ListPeers(ctx, &ententev1.ListPeersRequest{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, p := range resp.GetPeers() {
		fmt.Println(p.GetName(), p.GetRole())
	}
}

// Ask a peer for resources, whether or not it was asked before.
func ExampleReasonOf() {
	ask := func(ctx context.Context, admin *client.Admin) error {
		_, err := admin.CreatePeering(ctx, &ententev1.CreatePeeringRequest{
			Peer:      "peers/office",
			Resources: &ententev1.ResourceList{Amounts: map[string]string{"cpu": "4", "memory": "8Gi"}},
		})
		switch client.ReasonOf(err) {
		case "", "PEERING_EXISTS":
			return nil
		case "PEER_UNKNOWN":
			return fmt.Errorf("join it first: %s", client.Explain(err))
		}
		return err
	}
	_ = ask
}
