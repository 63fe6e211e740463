package controller

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
)

// PeerView is everything that a peer's conditions are a function of.
type PeerView struct {
	Peer      *v1alpha1.ForeignCluster
	Contracts []v1alpha1.Contract
	// Asks is the ResourceSlices that ask the peer.
	Asks []v1alpha1.ResourceSlice
	// Connected says whether a session is up; NotConnected says why not.
	Connected    bool
	NotConnected string
	FabricNodes  []v1alpha1.FabricNode
	// TunnelWaits is what the tunnel waits for; empty when it was planned.
	TunnelWaits string
	Now         time.Time
}

// RoleOf returns what a peer is by the contracts that are in force with it.
func RoleOf(contracts []v1alpha1.Contract) v1alpha1.Role {
	provider, consumer := false, false
	for _, c := range contracts {
		if !inForce(&c) {
			continue
		}
		provider = provider || c.Spec.Role == v1alpha1.ContractConsumer
		consumer = consumer || c.Spec.Role == v1alpha1.ContractProvider
	}
	switch {
	case provider && consumer:
		return v1alpha1.RoleProviderAndConsumer
	case provider:
		return v1alpha1.RoleProvider
	case consumer:
		return v1alpha1.RoleConsumer
	}
	return v1alpha1.RoleNone
}

// PeerConditions returns a peer's conditions, one for each hop. A condition is
// True only when what it says was seen.
func PeerConditions(v PeerView) []metav1.Condition {
	return []metav1.Condition{trusted(v), connected(v), network(v), offloading(v)}
}

func trusted(v PeerView) metav1.Condition {
	if v.Peer.Spec.TrustBundle == "" {
		return condition(v1alpha1.ConditionTrusted, metav1.ConditionFalse, "NotJoined",
			"known but not trusted: make a token there with `entente token create` and redeem it here with `entente join`")
	}
	return condition(v1alpha1.ConditionTrusted, metav1.ConditionTrue, "Joined", "the two clusters joined")
}

func connected(v PeerView) metav1.Condition {
	if v.Connected {
		return condition(v1alpha1.ConditionConnected, metav1.ConditionTrue, "SessionUp", "a session with the peer's agent is up")
	}
	return condition(v1alpha1.ConditionConnected, metav1.ConditionFalse, "NoSession", v.NotConnected)
}

func network(v PeerView) metav1.Condition {
	const kind = v1alpha1.ConditionNetwork
	if !slices.ContainsFunc(v.Contracts, wantsTunnel) {
		return condition(kind, metav1.ConditionFalse, "NotWanted", "no contract in force wants a tunnel")
	}
	if v.TunnelWaits != "" {
		return condition(kind, metav1.ConditionFalse, "Negotiating", v.TunnelWaits)
	}
	gateways, stale := 0, ""
	for _, n := range v.FabricNodes {
		if !n.Spec.Gateway {
			continue
		}
		gateways++
		if v.Now.Sub(n.Status.ObservedAt.Time) > fabricFresh {
			stale = fmt.Sprintf("the fabric on gateway node %s was last heard of at %s: look at its pod", n.Name, n.Status.ObservedAt.UTC().Format(time.RFC3339))
			continue
		}
		for _, p := range n.Status.Paths {
			if p.PeerID != v.Peer.Spec.ClusterID {
				continue
			}
			switch p.State {
			case "Up":
				return condition(kind, metav1.ConditionTrue, "ProbesAnswered", fmt.Sprintf("probes through the tunnel of node %s are answered", n.Name))
			case "Down":
				return condition(kind, metav1.ConditionFalse, "ProbesLost", p.Message)
			}
			return condition(kind, metav1.ConditionFalse, "Probing", p.Message)
		}
	}
	switch {
	case gateways == 0:
		return condition(kind, metav1.ConditionFalse, "NoGateway", "no node is a gateway: the fabric runs on none; look at DaemonSet entente-fabric")
	case stale != "":
		return condition(kind, metav1.ConditionUnknown, "FabricSilent", stale)
	}
	return condition(kind, metav1.ConditionFalse, "Applying", "the fabric has not taken up the tunnel yet")
}

func offloading(v PeerView) metav1.Condition {
	const kind = v1alpha1.ConditionOffloading
	asks := 0
	for _, c := range v.Contracts {
		if c.Spec.Role != v1alpha1.ContractConsumer || !inForce(&c) {
			continue
		}
		asks++
		ready := meta.FindStatusCondition(c.Status.Conditions, ConditionNodeReady)
		switch {
		case c.Status.Phase == peering.PhaseDraining.String():
			return condition(kind, metav1.ConditionFalse, "Draining", fmt.Sprintf("contract %s is ending: %s", c.Name, c.Status.Message))
		case ready == nil:
			return condition(kind, metav1.ConditionFalse, "NodeStarting", fmt.Sprintf("the virtual node of contract %s is starting", c.Name))
		case ready.Status != metav1.ConditionTrue:
			return condition(kind, metav1.ConditionFalse, ready.Reason, ready.Message)
		}
	}
	if asks > 0 {
		return condition(kind, metav1.ConditionTrue, "NodeReady", "the virtual node takes pods")
	}
	for _, ask := range v.Asks {
		accepted := meta.FindStatusCondition(ask.Status.Conditions, v1alpha1.ConditionAccepted)
		if accepted != nil && accepted.Status == metav1.ConditionFalse {
			return condition(kind, metav1.ConditionFalse, accepted.Reason, fmt.Sprintf("ResourceSlice %s: %s", ask.Name, accepted.Message))
		}
	}
	for _, c := range v.Contracts {
		if c.Spec.Role == v1alpha1.ContractProvider && c.Status.Phase == peering.PhaseActive.String() {
			return condition(kind, metav1.ConditionTrue, "Lending", fmt.Sprintf("contract %s lets the peer run pods here", c.Name))
		}
	}
	return condition(kind, metav1.ConditionFalse, "NoContract", "no contract is in force: ask for one with `entente peer`")
}

// ConditionNodeReady tells of a consumer's Contract whether its virtual node
// takes pods.
const ConditionNodeReady = "NodeReady"

func condition(kind string, status metav1.ConditionStatus, reason, message string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message}
}
