package controller

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
)

// tunnel writes the Tunnel to a peer as its contracts want it, and keeps the aliases in fc's
// status.
func (r *Peers) tunnel(ctx context.Context, fc *v1alpha1.ForeignCluster, contracts []v1alpha1.Contract) (tunnelState, error) {
	wanted := slices.ContainsFunc(contracts, wantsTunnel)
	if !wanted {
		fc.Status.Aliases = nil
		if err := r.dropTunnel(ctx, fc); err != nil || fc.Status.Network == nil {
			return tunnelState{}, err
		}
	}
	// Where no contract wants one, a key comes with what the peer still says.
	r.recall(fc.UID, func(m *peerMemory) { m.tunnelGone = false })
	if !wanted {
		return tunnelState{}, nil
	}
	exposed, err := r.Exposed(ctx, peering.ClusterID(fc.Spec.ClusterID))
	if err != nil {
		return tunnelState{}, fmt.Errorf("what %s may reach: %w", fc.Name, err)
	}
	local, left, err := r.prefixes(ctx, fc)
	if err != nil {
		return tunnelState{}, err
	}
	tunnel := &v1alpha1.Tunnel{ObjectMeta: metav1.ObjectMeta{Name: fc.Name}}
	err = r.Client.Get(ctx, client.ObjectKeyFromObject(tunnel), tunnel)
	if client.IgnoreNotFound(err) != nil {
		return tunnelState{}, fmt.Errorf("tunnel to %s: %w", fc.Name, err)
	}
	exists := err == nil && tunnel.Spec.PeerID == fc.Spec.ClusterID
	spec, state := planTunnelWrite(fc, local, tunnel.Spec, exists, exposed, left)
	if spec == nil {
		return state, nil
	}
	state.later, err = r.writeTunnel(ctx, fc, tunnel, *spec)
	if apierrors.IsInvalid(err) {
		state.lacks = joinTexts([]string{state.lacks, "what is to be open cannot be written, and what is to be closed is: " + peering.Text(err.Error(), maxWhy)})
		err = nil
	}
	return state, err
}

// prefixes returns this cluster's pod prefixes after giving aliases to the peer's. left is
// what has none.
func (r *Peers) prefixes(ctx context.Context, fc *v1alpha1.ForeignCluster) (local []netip.Prefix, left []string, err error) {
	local, omitted, err := r.States.Prefixes(ctx)
	if err != nil {
		return nil, nil, err
	}
	if omitted > 0 {
		left = append(left, fmt.Sprintf("%d pod prefixes of this cluster's nodes have no way to the peer, which can be told %d: set the prefix that holds them all with --pod-cidr",
			omitted, peering.MaxPrefixes))
	}
	if fc.Status.Network != nil {
		lacks, err := r.planAliases(ctx, fc, local)
		if err != nil {
			return nil, nil, err
		}
		left = append(left, lacks)
	}
	return local, left, nil
}

// planTunnelWrite returns the Tunnel that is to be written, and what it waits for or lacks.
// It is nil while there is none to write. exists says whether there is one for this peer;
// left is what is known to have no way through it.
func planTunnelWrite(fc *v1alpha1.ForeignCluster, local []netip.Prefix, has v1alpha1.TunnelSpec, exists bool, exposed []Exposed, left []string) (*v1alpha1.TunnelSpec, tunnelState) {
	if !exists {
		has = v1alpha1.TunnelSpec{}
	}
	spec, waits := PlanTunnel(fc, local, &has)
	state := tunnelState{unsure: slices.ContainsFunc(exposed, func(e Exposed) bool { return e.Unknown })}
	if spec == nil {
		state.waits = joinTexts(append(left, waits))
		if !exists {
			return nil, state
		}
		// What exists stays: a peer that says less is not a peer that is gone. What is open
		// is this cluster's word alone, and is always as it is now.
		spec = has.DeepCopy()
	}
	allow, closed := PlanAllow(exposed, has.Allow)
	spec.Allow = allow
	if state.waits == "" {
		state.lacks = joinTexts(append(left, waits, closed))
	}
	return spec, state
}

// tunnelState is what came of writing the Tunnel of a peer.
type tunnelState struct {
	// waits is what all of it waits for, lacks what is left out of it.
	waits, lacks string
	// unsure says that it is not known of some contract what it exposes.
	unsure bool
	// later is when what is to be opened can be written; 0 if nothing waits.
	later time.Duration
}

// again is when to write it again.
func (t tunnelState) again() time.Duration {
	again := restInterval
	if t.unsure {
		again = min(again, unsureLook)
	}
	if t.later > 0 {
		again = min(again, t.later)
	}
	return again
}

// joinTexts joins texts that are not empty, each once.
func joinTexts(texts []string) string {
	var out []string
	for _, t := range texts {
		if t != "" && !slices.Contains(out, t) {
			out = append(out, t)
		}
	}
	return strings.Join(out, "; ")
}

// planAliases gives aliases to a peer's prefixes, to one peer after the other. It returns
// what is in the way, if anything.
func (r *Peers) planAliases(ctx context.Context, fc *v1alpha1.ForeignCluster, local []netip.Prefix) (lacks string, err error) {
	r.recall(fc.UID, func(m *peerMemory) {
		var taken []netip.Prefix
		if taken, err = r.taken(ctx, fc, local); err != nil {
			return
		}
		if !m.planned {
			m.aliases = fc.Status.Aliases
		}
		aliases, planErr := PlanAliases(m.aliases, fc.Status.Network.Prefixes, r.AliasPool, taken, r.allocate)
		if planErr != nil {
			lacks = strings.ReplaceAll(planErr.Error(), "\n", "; ") // as errors.Join has it
		}
		m.aliases, m.planned, fc.Status.Aliases = aliases, true, aliases
	})
	return lacks, err
}

func (r *Peers) allocate(taken []netip.Prefix, wanted netip.Prefix) (netip.Prefix, error) {
	err := fmt.Errorf("the alias pool has no prefixes of its family")
	for _, pool := range r.AliasPool {
		if pool.Addr().Is4() != wanted.Addr().Is4() {
			continue
		}
		var p netip.Prefix
		// Its own prefix counts as taken, so that it gets one of the pool.
		if p, err = r.Allocate(append(slices.Clone(taken), wanted), wanted, pool); err == nil {
			return p, nil
		}
	}
	return netip.Prefix{}, err
}

// taken returns the prefixes that no alias for this peer may overlap. The lock is held.
func (r *Peers) taken(ctx context.Context, fc *v1alpha1.ForeignCluster, local []netip.Prefix) ([]netip.Prefix, error) {
	reserved, err := r.Reserved.now(ctx)
	if err != nil {
		return nil, err
	}
	taken := slices.Concat(local, reserved)
	var nodes corev1.NodeList
	if err := r.Client.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	var addrs []netip.Prefix
	for i := range nodes.Items {
		addrs = append(addrs, nodeAddresses(&nodes.Items[i])...)
	}
	taken = append(taken, nodeNetworks(addrs)...)
	var list v1alpha1.ForeignClusterList
	if err := r.Client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list foreign clusters: %w", err)
	}
	for i := range list.Items {
		other := &list.Items[i]
		if other.UID == fc.UID {
			continue
		}
		given := other.Status.Aliases
		if m := r.memory[other.UID]; m != nil && m.planned {
			given = m.aliases
		}
		for _, a := range given {
			if p, err := netip.ParsePrefix(a.Alias); err == nil {
				taken = append(taken, p)
			}
		}
	}
	return taken, nil
}

// dropTunnel removes the tunnel to a peer, its key and its aliases. Once that is done it
// costs nothing.
func (r *Peers) dropTunnel(ctx context.Context, fc *v1alpha1.ForeignCluster) error {
	gone := false
	r.recall(fc.UID, func(m *peerMemory) {
		gone = m.tunnelGone
		m.aliases, m.planned = nil, false
	})
	tunnel := &v1alpha1.Tunnel{ObjectMeta: metav1.ObjectMeta{Name: fc.Name}}
	if gone && apierrors.IsNotFound(r.Client.Get(ctx, client.ObjectKeyFromObject(tunnel), tunnel)) {
		return nil
	}
	if err := r.Client.Delete(ctx, tunnel); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("drop the tunnel to %s: %w", fc.Name, err)
	}
	_, err := store.EditSecret(ctx, r.Client, r.States.secretKey(), func(data map[string][]byte) bool {
		return dropKeys(data, fc.Spec.ClusterID)
	})
	if err == nil {
		r.recall(fc.UID, func(m *peerMemory) { m.tunnelGone = true })
	}
	return err
}
