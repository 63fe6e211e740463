package agent

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/controller"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/relay"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/peering/inband"
	"github.com/entente-dev/entente/tunnel/plan"
)

// listenInBand accepts what gateways relay from in-band peers; nil if the configuration turns it off.
func (a *agent) listenInBand(ctx context.Context, address string) (net.Listener, error) {
	if address == "" {
		return nil, nil //nolint:nilnil // the session manager expects nil then
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen for relays on %s: %w", address, err)
	}
	remote, err := netip.ParseAddrPort(listener.Addr().String())
	if err != nil {
		return nil, fmt.Errorf("listen for relays on %s: %w", address, err)
	}
	a.inBand = netip.AddrPortFrom(a.cfg.PodIP, remote.Port())
	return relay.Listen(relay.ListenerConfig{
		Listener: listener, Log: a.log,
		Keys: func(peer string) []relay.Key {
			keys, err := a.relayKeys(ctx, peering.ClusterID(peer), relay.ToAgent)
			if err != nil {
				a.log.Debug("refusing a relay", "peer", peer, "err", err)
			}
			return keys
		},
		Address: func(peer string) net.Addr { return &net.TCPAddr{IP: plan.Overlay(peer, "").AsSlice()} },
	})
}

// inBandTunnels is the configuration of tunnels to in-band peers.
func (a *agent) inBandTunnels() controller.InBand {
	return controller.InBand{Agent: a.inBand.String(), Overlay: plan.Overlay}
}

// relayKeys returns the keys by which this agent and the fabric prove to each other that a connection is to or from an
// in-band peer, the one in use first. They follow from the preshared keys that the agent stored for the fabric.
func (a *agent) relayKeys(ctx context.Context, peer peering.ClusterID, d relay.Direction) ([]relay.Key, error) {
	fc := a.addresses.peer(peer)
	if fc == nil || fc.Spec.InBand == nil {
		return nil, fmt.Errorf("cluster %s is not in-band", peer)
	}
	stored, err := a.fabricKeys.get(ctx)
	if err != nil {
		return nil, err
	}
	return relayKeysFrom(stored, string(peer), d)
}

// relayKeysFrom derives the keys of a peer's relays from the content of the fabric's Secret.
func relayKeysFrom(stored map[string][]byte, peer string, d relay.Direction) ([]relay.Key, error) {
	preshared := presharedKeysOf(stored, peer)
	if len(preshared) == 0 {
		return nil, fmt.Errorf("the Secret %s has no preshared key of the tunnel to it yet", v1alpha1.FabricSecret)
	}
	return relay.KeysFrom(d, preshared...)
}

// dialInBand connects to a peer's agent through the tunnel. It tries the gateways of this cluster one after the
// other.
func (a *agent) dialInBand(ctx context.Context, peer peering.ClusterID) (net.Conn, error) {
	keys, err := a.relayKeys(ctx, peer, relay.ToPeer)
	if err != nil {
		return nil, err
	}
	var nodes v1alpha1.FabricNodeList
	if err := a.mgr.GetCache().List(ctx, &nodes); err != nil {
		return nil, fmt.Errorf("list fabric nodes: %w", err)
	}
	relays := relaysTo(nodes.Items, string(peer))
	if len(relays) == 0 {
		return nil, errors.New("no gateway of this cluster has a relay for its agent: see condition InBand")
	}
	var failures []string
	for _, address := range relays {
		conn, err := askRelay(ctx, address, peer, keys[0])
		if err == nil {
			return conn, nil
		}
		failures = append(failures, fmt.Sprintf("relay at %s: %s", address, err))
		if ctx.Err() != nil {
			break
		}
	}
	return nil, errors.New(strings.Join(failures, "; "))
}

func askRelay(ctx context.Context, address string, peer peering.ClusterID, key relay.Key) (net.Conn, error) {
	dialing, cancel := context.WithTimeout(ctx, relayDialTimeout)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(dialing, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("%w: TCP has to pass from the agent's pod to the gateway nodes", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	err = relay.Ask(conn, string(peer), key, relayTimeout)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

// relaysTo returns where the relays of this cluster's gateways are: first those whose path to the peer is up, the
// fastest first.
func relaysTo(nodes []v1alpha1.FabricNode, peer string) []string {
	speed := func(n v1alpha1.FabricNode) int64 {
		best := int64(math.MaxInt64)
		for _, p := range n.Status.Paths {
			if p.PeerID == peer && p.State == "Up" {
				best = min(best, p.RoundTripMicroseconds)
			}
		}
		return best
	}
	gateways := slices.DeleteFunc(slices.Clone(nodes), func(n v1alpha1.FabricNode) bool { return !n.Spec.Gateway })
	slices.SortFunc(gateways, func(a, b v1alpha1.FabricNode) int {
		return cmp.Or(cmp.Compare(speed(a), speed(b)), b.Status.ObservedAt.Compare(a.Status.ObservedAt.Time), cmp.Compare(a.Name, b.Name))
	})
	var out []string
	for _, n := range gateways {
		out = append(out, n.Status.Relays...)
	}
	return out[:min(len(out), maxRelays)]
}

// selfTo is this cluster's info for another one: without its endpoints, if that one is in-band.
func (a *agent) selfTo(id peering.ClusterID) identity.ClusterInfo {
	self := a.self()
	if fc := a.addresses.peer(id); fc != nil && fc.Spec.InBand != nil {
		self.Endpoints = nil
	}
	return self
}

// networkParameters is what administrators of other clusters need for in-band tunnels.
func (a *agent) networkParameters(ctx context.Context) (inband.Parameters, error) {
	out := inband.Parameters{ID: a.source.ID(), Name: a.name(), ExchangeKey: a.states.Exchange.Public()}
	var nodes v1alpha1.FabricNodeList
	if err := a.mgr.GetCache().List(ctx, &nodes); err != nil {
		return out, fmt.Errorf("list fabric nodes: %w", err)
	}
	slices.SortFunc(nodes.Items, func(a, b v1alpha1.FabricNode) int { return cmp.Compare(a.Name, b.Name) })
	for i := range nodes.Items {
		n := &nodes.Items[i]
		key, err := base64.StdEncoding.DecodeString(n.Status.PublicKey)
		if !n.Spec.Gateway || err != nil || len(key) != 32 || len(out.Gateways) == peering.MaxInBandGateways {
			continue
		}
		out.Gateways = append(out.Gateways, peering.Gateway{Name: n.Name, PublicKey: [32]byte(key), Endpoints: n.Spec.Endpoints})
	}
	return out, nil
}

// connectInBand makes a peer reachable by its parameters, and trusts it. Without a session the tunnel begins again with
// the key that follows from them, so that two clusters that have no key in common find one if both are connected again.
func (a *agent) connectInBand(ctx context.Context, parameters inband.Parameters, name string) (string, error) {
	if err := a.forgotten.Remove(ctx, parameters.ID); err != nil {
		return "", err
	}
	connected, err := store.ConnectInBand(ctx, a.direct, a.mgr.GetCache(), parameters, name)
	if err != nil {
		return "", err
	}
	if up := a.trust.Session(parameters.ID).Up; up != nil && up.InBand {
		return connected, nil // both sides have a key in common
	}
	var fc v1alpha1.ForeignCluster
	if err := a.direct.Get(ctx, client.ObjectKey{Name: connected}, &fc); err != nil {
		return "", fmt.Errorf("read ForeignCluster %s: %w", connected, err)
	}
	if fc.Spec.InBand == nil {
		return connected, nil // another administrator changed it at once
	}
	return connected, a.states.UseFirstKey(ctx, &fc)
}
