package client_test

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"k8s.io/client-go/rest"
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
	for p, err := range admin.Peers(ctx) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(p.GetName(), p.GetRole())
	}
}

// Join two clusters: one makes a token, the other redeems it.
func ExampleAdmin_join() {
	office, stopOffice := newFakeAgent().dial()
	defer stopOffice()
	home, stopHome := newFakeAgent().dial()
	defer stopHome()
	ctx := context.Background()

	token, err := office.CreateToken(ctx, &ententev1.CreateTokenRequest{})
	if err != nil {
		fmt.Println(err)
		return
	}
	joined, err := home.JoinPeer(ctx, &ententev1.JoinPeerRequest{Token: token.GetToken(), Name: "head-office"})
	if err != nil {
		fmt.Println(client.Explain(err))
		return
	}
	fmt.Println("trusted:", joined.GetPeer().GetName())
	// Output: trusted: peers/head-office
}

// Introduce this cluster to another without a token. Both sides' administrators
// compare the code before they approve.
func ExampleAdmin_introduce() {
	admin, stop := newFakeAgent().dial()
	defer stop()
	ctx := context.Background()

	resp, err := admin.IntroducePeer(ctx, &ententev1.IntroducePeerRequest{Endpoint: "203.0.113.7:7443", Name: "partner"})
	if err != nil {
		fmt.Println(client.Explain(err))
		return
	}
	fmt.Println("the other side shows", resp.GetPeer().GetCode(), "too?")

	for _, code := range []string{"042 971", "042 917"} {
		_, err = admin.ApprovePeer(ctx, &ententev1.ApprovePeerRequest{Name: resp.GetPeer().GetName(), Code: code})
		fmt.Printf("%s: %v\n", code, client.ReasonOf(err) == "")
	}
	// Output:
	// the other side shows 042917 too?
	// 042 971: false
	// 042 917: true
}

// Ask the cheapest peer for it, see what it would cost, and wait until
// pods can run there.
func ExampleAdmin_peer() {
	admin, stop := newFakeAgent().dial()
	defer stop()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	ask := &ententev1.CreatePeeringRequest{
		Peer: "peers/-", PeeringRequest: "batch", // or peers/NAME for a certain one
		Resources:    &ententev1.ResourceList{Amounts: map[string]string{"cpu": "4", "memory": "8Gi"}},
		PriceCeiling: &ententev1.Money{Currency: "EUR", Amount: "0.1"},
		RequestId:    "6f1c2d5e-0d0c-4a55-9a4e-0c7a5a1b7d11", // makes it safe to repeat
		ValidateOnly: true,
	}
	offer, err := admin.CreatePeering(ctx, ask)
	if err != nil {
		fmt.Println(client.Explain(err))
		return
	}
	hourly := offer.GetAdvertisement().GetHourlyPrice()
	fmt.Println(offer.GetProvider(), "would take", hourly.GetCurrency(), hourly.GetAmount(), "an hour")

	ask.ValidateOnly = false
	if _, err := admin.CreatePeering(ctx, ask); err != nil {
		fmt.Println(client.Explain(err))
		return
	}
	p, err := admin.WaitForPeering(ctx, "peerings/batch")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("pods can go to", p.GetNode())
	// Output:
	// peers/office would take EUR 0.08 an hour
	// pods can go to entente-k1
}

// Ask for more. The contract is amended; what is not in the mask stays.
func ExampleAdmin_update() {
	admin, stop := newFakeAgent().dial()
	defer stop()
	ctx := context.Background()
	if _, err := admin.CreatePeering(ctx, &ententev1.CreatePeeringRequest{Peer: "peers/office", PeeringRequest: "batch"}); err != nil {
		fmt.Println(client.Explain(err))
		return
	}

	resp, err := admin.UpdatePeering(ctx, &ententev1.UpdatePeeringRequest{
		Peering: &ententev1.Peering{
			Name: "peerings/batch", Resources: &ententev1.ResourceList{Amounts: map[string]string{"cpu": "16"}},
		},
		UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"resources"}},
	})
	if err != nil {
		fmt.Println(client.Explain(err))
		return
	}
	fmt.Println(resp.GetPeering().GetResources().GetAmounts()["cpu"])
	// Output: 16
}

// Approve what peers ask for, where the policy says AfterApproval.
func ExampleAdmin_PeeringRequests() {
	agent := newFakeAgent()
	agent.pending = []*ententev1.PendingRequest{{Name: "peers/office/requests/r1", PriceCeiling: &ententev1.Money{Currency: "EUR", Amount: "2"}}}
	admin, stop := agent.dial()
	defer stop()
	ctx := context.Background()

	for r, err := range admin.PeeringRequests(ctx, "peers/-") {
		if err == nil {
			_, err = admin.ApprovePeeringRequest(ctx, &ententev1.ApprovePeeringRequestRequest{Name: r.GetName()})
		}
		if err != nil {
			fmt.Println(client.Explain(err))
			return
		}
		fmt.Println("approved", r.GetName())
	}
	// Output: approved peers/office/requests/r1
}

// Watch what happens to one peer.
func ExampleAdmin_Events() {
	admin, stop := newFakeAgent().dial()
	defer stop()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	for e, err := range admin.Events(ctx, "peers/office") {
		if err != nil {
			fmt.Println(err)
			return
		}
		if e == nil { // the watch has begun: read the current state, and act
			if _, err := admin.CreatePeering(ctx, &ententev1.CreatePeeringRequest{Peer: "peers/office", PeeringRequest: "batch"}); err != nil {
				fmt.Println(client.Explain(err))
				return
			}
			continue
		}
		fmt.Println(e.GetSubject(), e.GetReason())
		if e.GetReason() == "NodeReady" {
			return
		}
	}
	// Output:
	// peerings/batch Signed
	// peers/office NodeReady
}

// See what was used, by this cluster's count and by the provider's signed
// statements.
func ExampleAdmin_Usage() {
	agent := newFakeAgent()
	agent.usage = []*ententev1.Usage{{
		Contract: "contracts/k1", Sequence: 7, Stated: map[string]string{"cpu": "4"}, Counted: map[string]string{"cpu": "3.5"},
		Amount: &ententev1.Money{Currency: "EUR", Amount: "0.08"}, DifferencePercent: "12.5",
	}}
	admin, stop := agent.dial()
	defer stop()

	for u, err := range admin.Usage(context.Background(), "") {
		if err != nil {
			fmt.Println(client.Explain(err))
			return
		}
		fmt.Printf("%s %d: %s %s for %s core-hours; %s%% beside our count\n", u.GetContract(), u.GetSequence(),
			u.GetAmount().GetCurrency(), u.GetAmount().GetAmount(), u.GetStated()["cpu"], u.GetDifferencePercent())
	}
	// Output: contracts/k1 7: EUR 0.08 for 4 core-hours; 12.5% beside our count
}

// Ask a peer for resources, whether or not it was asked before.
func ExampleReasonOf() {
	admin, stop := newFakeAgent().dial()
	defer stop()

	for _, peer := range []string{"peers/office", "peers/office", "peers/nobody"} {
		_, err := admin.CreatePeering(context.Background(), &ententev1.CreatePeeringRequest{Peer: peer, PeeringRequest: "batch"})
		switch client.ReasonOf(err) {
		case "":
			fmt.Println("asked")
		case "PEERING_EXISTS":
			fmt.Println("asked before")
		case "PEER_UNKNOWN":
			fmt.Println("join it first:", client.Explain(err))
		default:
			fmt.Println(err)
		}
	}
	// Output:
	// asked
	// asked before
	// join it first: no peer peers/nobody
}

// peerWithOffice trusts the office and asks it for resources.
func peerWithOffice(ctx context.Context, config *rest.Config) error {
	admin, err := client.DialAdmin(ctx, client.AdminConfig{REST: config})
	if err != nil {
		return err
	}
	defer func() { _ = admin.Close() }()
	return askOffice(ctx, admin)
}

func askOffice(ctx context.Context, admin *client.Admin) error {
	_, err := admin.IntroducePeer(ctx, &ententev1.IntroducePeerRequest{
		Endpoint:  "office.example.com:7443",
		ClusterId: "k2a7qv4t6mzj3e5x7c2b4n6d7f2h4a6s", Approve: true, Name: "office",
	})
	if err != nil {
		return err
	}
	_, err = admin.CreatePeering(ctx, &ententev1.CreatePeeringRequest{
		Peer:         "peers/office",
		Resources:    &ententev1.ResourceList{Amounts: map[string]string{"cpu": "4", "memory": "8Gi"}},
		PriceCeiling: &ententev1.Money{Currency: "EUR", Amount: "0.1"},
	})
	if err != nil {
		return err
	}
	_, err = admin.WaitForPeering(ctx, "peerings/office")
	return err
}

// Trust a cluster whose ID its administrator sent, ask it for resources, and wait until pods can
// run there.
func Example() {
	admin, stop := newFakeAgent().dial()
	defer stop()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	if err := askOffice(ctx, admin); err != nil {
		fmt.Println(client.Explain(err))
		return
	}
	fmt.Println("peered with the office")
	// Output: peered with the office
}

var _ = peerWithOffice // as the document has it, for a real cluster
