package provider

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
)

// approval says whether an administrator approved an ask, and if not, what waits
// for that. An approval is of what was to be seen: an ask for more, for other nodes,
// classes or another network waits under another ID, that of the request with a
// number. granted is what the request's contract has already; what stays within that
// needs no other approval.
func approval(fc *v1alpha1.ForeignCluster, ask peering.Ask, granted *peering.Ask) (bool, *v1alpha1.PendingRequest, error) {
	approved, denied := fc.Spec.ApprovedRequests, fc.Spec.DeniedRequests
	ofRequest := func(id string) bool { return isRequest(id, ask.RequestID) }
	if slices.Contains(denied, ask.RequestID) {
		return false, nil, peering.Refuse(peering.ReasonPolicyRefused, "", "an administrator of the provider denied the request")
	}
	if granted != nil && sameKind(ask, *granted) && slices.ContainsFunc(approved, ofRequest) {
		if _, within := ask.Resources.Fits(granted.Resources); within {
			return true, nil, nil
		}
	}
	entries := slices.DeleteFunc(slices.Clone(fc.Status.Requests), func(r v1alpha1.PendingRequest) bool { return !ofRequest(r.ID) })
	for i := range entries {
		if !covers(&entries[i], ask) {
			continue
		}
		if slices.Contains(approved, entries[i].ID) {
			return true, &entries[i], nil
		}
		if !slices.Contains(denied, entries[i].ID) {
			return false, &entries[i], nil
		}
	}
	if slices.ContainsFunc(denied, ofRequest) {
		return false, nil, peering.Refuse(peering.ReasonPolicyRefused, "", "an administrator of the provider denied to grant more by this request")
	}
	id := ask.RequestID
	taken := func(id string) bool {
		return slices.Contains(approved, id) || slices.ContainsFunc(entries, func(r v1alpha1.PendingRequest) bool { return r.ID == id })
	}
	for n := 2; taken(id); n++ {
		id = ask.RequestID + "." + strconv.Itoa(n)
	}
	if len(id) > peering.MaxRequestIDLen {
		return false, nil, peering.Refuse(peering.ReasonPolicyRefused, "",
			"less was approved, and the request ID is too long to append the suffix by which more is asked for: it has %d characters, the limit is %d", len(ask.RequestID), peering.MaxRequestIDLen)
	}
	pending := &v1alpha1.PendingRequest{
		ID: id, PriceCeiling: store.MoneyOf(ask.PriceCeiling), Pool: ask.Pool, NodeSelector: ask.NodeSelector, Network: v1alpha1.NetworkNone,
		RuntimeClasses: ask.RuntimeClasses, StorageClasses: ask.StorageClasses,
	}
	if ask.Network {
		pending.Network = v1alpha1.NetworkTunnel
	}
	if ask.Duration > 0 {
		pending.Duration = &metav1.Duration{Duration: ask.Duration}
	}
	if len(ask.Resources) > 0 {
		var err error
		if pending.Resources, err = store.ResourceList(ask.Resources); err != nil {
			return false, nil, err
		}
	}
	return false, pending, nil
}

// isRequest says whether an ID is that of a request, or of one for more by the
// same name.
func isRequest(id, request string) bool {
	rest, ok := strings.CutPrefix(id, request)
	if !ok || rest == "" {
		return ok
	}
	number, ok := strings.CutPrefix(rest, ".")
	return ok && number != "" && strings.Trim(number, "0123456789") == ""
}

// covers says whether an ask wants no more than a request that is to be seen.
func covers(r *v1alpha1.PendingRequest, ask peering.Ask) bool {
	if r.Duration != nil && (ask.Duration == 0 || ask.Duration > r.Duration.Duration) {
		return false
	}
	if !sameKind(ask, peering.Ask{
		Pool: r.Pool, NodeSelector: r.NodeSelector, Network: r.Network != v1alpha1.NetworkNone, RuntimeClasses: r.RuntimeClasses, StorageClasses: r.StorageClasses,
	}) {
		return false
	}
	if len(r.Resources) == 0 {
		return true
	}
	seen, err := store.Resources(r.Resources)
	if err != nil || len(ask.Resources) == 0 {
		return false
	}
	_, fits := ask.Resources.Fits(seen)
	return fits
}

// sameKind says whether two asks are for the same but for amounts and time: nodes,
// network and classes.
func sameKind(a, b peering.Ask) bool {
	return a.Pool == b.Pool && maps.Equal(a.NodeSelector, b.NodeSelector) && a.Network == b.Network &&
		slices.Equal(a.RuntimeClasses, b.RuntimeClasses) && slices.Equal(a.StorageClasses, b.StorageClasses)
}

// record shows to administrators, in the peer's ForeignCluster, what waits of a
// request. What is there already was repeated.
func (p *Provider) record(ctx context.Context, peer peering.ClusterID, request string, pending v1alpha1.PendingRequest) error {
	now := p.Now()
	repeated := !pending.Time.IsZero()
	p.mu.Lock()
	if p.asked == nil {
		p.asked, p.recorded = map[string]time.Time{}, map[peering.ClusterID]time.Time{}
	}
	soon := now.Sub(p.recorded[peer]) < requestPause
	switch {
	case repeated:
		p.asked[askedKey(peer, pending.ID)] = now
	case !soon:
		p.recorded[peer] = now
	}
	p.mu.Unlock()
	if repeated || soon {
		return nil // what comes too soon is recorded when it is repeated
	}
	pending.Time = metav1.NewTime(now)
	return p.editRequests(ctx, peer, func(fc *v1alpha1.ForeignCluster) error {
		// What an ID stands for never changes once it is to be seen. That it is taken
		// the cache did not show yet; the next repetition gets another.
		if slices.Contains(fc.Spec.ApprovedRequests, pending.ID) || slices.Contains(fc.Spec.DeniedRequests, pending.ID) ||
			slices.ContainsFunc(fc.Status.Requests, func(r v1alpha1.PendingRequest) bool { return r.ID == pending.ID }) {
			return nil
		}
		// What the peer asked for before by the same name, it does not ask for now.
		fc.Status.Requests = slices.DeleteFunc(fc.Status.Requests, func(r v1alpha1.PendingRequest) bool {
			return isRequest(r.ID, request) && !slices.Contains(fc.Spec.ApprovedRequests, r.ID)
		})
		if len(fc.Status.Requests) >= maxRequests {
			return &peering.Error{
				Reason: peering.ReasonPolicyPending, RetryAfter: requestLife / maxRequests,
				Message: fmt.Sprintf("limit of %d requests reached that wait for an administrator of the provider", maxRequests),
			}
		}
		fc.Status.Requests = append(fc.Status.Requests, pending)
		return nil
	})
}

func askedKey(peer peering.ClusterID, id string) string { return string(peer) + "/" + id }

// editRequests changes what waits in a peer's ForeignCluster, with a
// compare-and-swap.
func (p *Provider) editRequests(ctx context.Context, peer peering.ClusterID, edit func(*v1alpha1.ForeignCluster) error) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		fc, err := store.Find(ctx, p.Reader, peer)
		if err != nil || fc == nil {
			return err
		}
		before := fc.DeepCopy()
		if err := edit(fc); err != nil {
			return err
		}
		if slices.EqualFunc(before.Status.Requests, fc.Status.Requests, func(a, b v1alpha1.PendingRequest) bool { return a.ID == b.ID }) {
			return nil
		}
		return store.PatchStatusLocked(ctx, p.Client, before, fc)
	})
}

// dropFulfilled drops the requests that a contract fulfils.
func (p *Provider) dropFulfilled(ctx context.Context, fc *v1alpha1.ForeignCluster, terms peering.Terms) {
	if !slices.ContainsFunc(fc.Status.Requests, func(r v1alpha1.PendingRequest) bool { return isRequest(r.ID, terms.RequestID) }) {
		return
	}
	err := p.editRequests(ctx, terms.Consumer.ID, func(fc *v1alpha1.ForeignCluster) error {
		fc.Status.Requests = slices.DeleteFunc(fc.Status.Requests, func(r v1alpha1.PendingRequest) bool {
			return isRequest(r.ID, terms.RequestID) && fulfilled(&r, terms.Resources)
		})
		return nil
	})
	if err != nil {
		p.log().Warn("cannot drop a request that was signed; it goes when it is old", "contract", terms.ContractID, "err", err)
	}
}

// fulfilled reports whether what a contract grants is what a request was about. One
// that leaves the amounts to the policy is by any.
func fulfilled(r *v1alpha1.PendingRequest, granted peering.Resources) bool {
	if len(r.Resources) == 0 {
		return true
	}
	asked, err := store.Resources(r.Resources)
	if err != nil {
		return true
	}
	_, fits := asked.Fits(granted)
	return fits
}

// sweep drops requests that were denied, or that nobody repeats.
func (p *Provider) sweep(ctx context.Context, started time.Time) {
	var list v1alpha1.ForeignClusterList
	if err := p.Client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil { // they are only read
		p.log().Warn("cannot look at the requests that wait", "err", err)
		return
	}
	now := p.Now()
	kept := map[string]bool{}
	for i := range list.Items {
		fc := &list.Items[i]
		peer := peering.ClusterID(fc.Spec.ClusterID)
		idle := func(r v1alpha1.PendingRequest) bool {
			p.mu.Lock()
			defer p.mu.Unlock()
			last, ok := p.asked[askedKey(peer, r.ID)]
			if !ok {
				last = started // nothing is known of before
			}
			return now.Sub(last) >= requestLife
		}
		gone := func(r v1alpha1.PendingRequest) bool {
			// One that was approved is kept: it says what was.
			return slices.Contains(fc.Spec.DeniedRequests, r.ID) || idle(r) && !slices.Contains(fc.Spec.ApprovedRequests, r.ID)
		}
		if slices.ContainsFunc(fc.Status.Requests, gone) {
			err := p.editRequests(ctx, peer, func(fc *v1alpha1.ForeignCluster) error {
				fc.Status.Requests = slices.DeleteFunc(fc.Status.Requests, gone)
				return nil
			})
			if err != nil {
				p.log().Warn("cannot drop requests that nobody repeats", "peer", fc.Name, "err", err)
			}
		}
		for _, r := range fc.Status.Requests {
			kept[askedKey(peer, r.ID)] = true
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.asked, func(key string, at time.Time) bool { return !kept[key] && now.Sub(at) >= requestLife })
	maps.DeleteFunc(p.recorded, func(_ peering.ClusterID, at time.Time) bool { return now.Sub(at) >= requestPause })
}
