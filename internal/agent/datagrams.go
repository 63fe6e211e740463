package agent

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	ententeclient "github.com/entente-dev/entente/client"
	"github.com/entente-dev/entente/internal/datagrams"
	"github.com/entente-dev/entente/internal/kube"
	"github.com/entente-dev/entente/internal/notify"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/server"
)

// carrying is the state of tunnels whose datagrams the agent carries.
type carrying struct {
	hub *datagrams.Hub
	// tunnels is the cluster IDs of the peers that have a tunnel.
	tunnels atomic.Pointer[map[string]bool]
	// keys is the content of the fabric's Secret.
	keys *lastKnown[map[string][]byte]
}

// relayDatagrams carries datagrams of tunnels over sessions, if gateways ask for it.
func (a *agent) relayDatagrams(ctx context.Context, cfg RelayConfig) error {
	if cfg.Address == "" {
		return nil
	}
	c := &carrying{keys: a.fabricKeys}
	c.tunnels.Store(&map[string]bool{})
	var err error
	c.hub, err = datagrams.NewHub(datagrams.HubConfig{
		Carries: c.carries, Keys: c.linkKeys, IsGateway: a.isGateway,
		Call: func(ctx context.Context, peer string, next func(context.Context) ([]byte, error)) error {
			return ententeclient.SendDatagrams(ctx, a.sessions.Conn(peering.ClusterID(peer)), next)
		},
		PeerRate: cfg.Rate, AllRate: cfg.AllRate, Log: a.log,
	})
	if err != nil {
		return err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", cfg.Address)
	if err != nil {
		return fmt.Errorf("listen for gateways on %s: %w", cfg.Address, err)
	}
	a.carrying = c
	changed := notify.New()
	if _, err := kube.OnChange(ctx, a.mgr.GetCache(), &v1alpha1.Tunnel{}, func(any, any) bool { return false }, changed.Notify); err != nil {
		return err
	}
	return errors.Join(register(c.hub.Collector()),
		a.run(func(ctx context.Context) error { return c.hub.Serve(ctx, listener) }),
		a.run(func(ctx context.Context) error { return c.follow(ctx, a.mgr.GetCache(), changed) }))
}

// readFabricKeys reads the preshared keys of tunnels.
func (a *agent) readFabricKeys(ctx context.Context) (map[string][]byte, error) {
	var secret corev1.Secret
	err := a.direct.Get(ctx, client.ObjectKey{Namespace: a.cfg.Namespace, Name: v1alpha1.FabricSecret}, &secret)
	if err != nil {
		return nil, fmt.Errorf("read Secret %s: %w", v1alpha1.FabricSecret, err)
	}
	return secret.Data, nil
}

// follow keeps track of which peers have tunnels.
func (c *carrying) follow(ctx context.Context, cache client.Reader, changed notify.Channel) error {
	for {
		var list v1alpha1.TunnelList
		if err := cache.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
			return fmt.Errorf("list tunnels: %w", err) // a cache fails only when it ends
		}
		now := make(map[string]bool, len(list.Items))
		for i := range list.Items {
			now[list.Items[i].Spec.PeerID] = true
		}
		c.tunnels.Store(&now)
		c.hub.Cut(func(peer string) bool { return now[peer] })
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

func (c *carrying) carries(peer string) bool { return (*c.tunnels.Load())[peer] }

// linkKeys returns the keys of a peer's links, which are derived from those of the tunnel.
func (c *carrying) linkKeys(ctx context.Context, peer string) []datagrams.Key {
	if !c.carries(peer) {
		return nil
	}
	stored, err := c.keys.get(ctx)
	if err != nil {
		return nil
	}
	return linkKeysFrom(stored, peer)
}

// linkKeysFrom derives the keys of a peer's links from the content of the fabric's Secret.
func linkKeysFrom(stored map[string][]byte, peer string) []datagrams.Key {
	var out []datagrams.Key
	for _, preshared := range presharedKeysOf(stored, peer) {
		if key, err := datagrams.KeyFrom(preshared); err == nil {
			out = append(out, key)
		}
	}
	return out
}

// presharedKeysOf returns the preshared key in use of the tunnel to a peer, the next and the previous one, of those
// that the fabric's Secret has. Without one in use there are none.
func presharedKeysOf(stored map[string][]byte, peer string) (out [][32]byte) {
	for _, suffix := range []string{"", v1alpha1.FabricKeyNext, v1alpha1.FabricKeyPrevious} {
		if key := stored[peer+suffix]; len(key) == 32 {
			out = append(out, [32]byte(key))
		} else if suffix == "" {
			return nil
		}
	}
	return out
}

// isGateway reports whether a WireGuard public key belongs to a gateway of this cluster.
func (a *agent) isGateway(ctx context.Context, publicKey [32]byte) bool {
	text := base64.StdEncoding.EncodeToString(publicKey[:])
	var nodes v1alpha1.FabricNodeList
	if err := a.mgr.GetCache().List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return false
	}
	return slices.ContainsFunc(nodes.Items, func(n v1alpha1.FabricNode) bool { return n.Spec.Gateway && n.Status.PublicKey == text })
}

// datagramsOfPeers returns the receiver of peers' datagrams; nil if there is none.
func (a *agent) datagramsOfPeers() server.Datagrams {
	if a.carrying == nil {
		return nil
	}
	return received{a.carrying.hub}
}

type received struct{ hub *datagrams.Hub }

func (r received) Receive(ctx context.Context, peer peering.ClusterID, frames []byte) error {
	err := r.hub.Receive(ctx, string(peer), frames)
	if errors.Is(err, datagrams.ErrRefused) {
		return peering.Errorf(peering.ReasonPolicyRefused, "there is no tunnel with your cluster here now")
	}
	return err
}
