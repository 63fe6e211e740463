package provider

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
)

// approval reports whether an administrator approved an ask, and if not, returns the
// request that waits for approval. An approval covers what the administrator saw: an ask for
// more, for other nodes, classes or another network waits under another ID, that of the
// request with a number. granted is what the request's contract has already; an ask within
// that needs no further approval. A request whose own ID ends like that is refused: an approval
// of the one would be one of the other.
func approval(fc *v1alpha1.ForeignCluster, ask peering.Ask, granted *peering.Ask) (bool, *v1alpha1.PendingRequest, error) {
	approved, denied := fc.Spec.ApprovedRequests, fc.Spec.DeniedRequests
	if numbered.MatchString(ask.RequestID) {
		return false, nil, peering.Refuse(peering.ReasonRequestInvalid, "",
			"a request that needs an approval must not have an ID that ends with a dot and digits, as %q does: ask by another one", ask.RequestID)
	}
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
	id := nextID(fc, ask.RequestID)
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

// numbered is an ID with the number of an ask for more.
var numbered = regexp.MustCompile(`\.[0-9]+$`)

// isRequest reports whether an ID is that of a request, or that of an ask for more by
// the same request.
func isRequest(id, request string) bool {
	rest, ok := strings.CutPrefix(id, request)
	return ok && (rest == "" || numbered.FindString(rest) == rest)
}

// nextID returns the ID of the next ask of a request: greater than all that there are or were, since an administrator may
// be about to approve one that is dropped meanwhile, and must not approve another ask by its ID.
func nextID(fc *v1alpha1.ForeignCluster, request string) string {
	highest := 0
	use := func(id string) {
		if isRequest(id, request) {
			highest = max(highest, numberOf(id))
		}
	}
	for i := range fc.Status.Requests {
		use(fc.Status.Requests[i].ID)
	}
	for _, id := range slices.Concat(fc.Spec.ApprovedRequests, fc.Spec.DeniedRequests, fc.Status.DroppedRequests) {
		use(id)
	}
	if highest == 0 {
		return request
	}
	return request + "." + strconv.Itoa(highest+1)
}

// numberOf returns the number of an ask among those of its request. The first has none.
func numberOf(id string) int {
	n, err := strconv.Atoi(strings.TrimPrefix(numbered.FindString(id), "."))
	if err != nil {
		return 1
	}
	return n
}

// covers reports whether an ask stays within a request that administrators can see.
func covers(r *v1alpha1.PendingRequest, ask peering.Ask) bool {
	if r.Duration != nil && (ask.Duration == 0 || ask.Duration > r.Duration.Duration) {
		return false
	}
	if !sameKind(ask, kindOf(r)) {
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

// kindOf returns the nodes, network and classes that a request asks for.
func kindOf(r *v1alpha1.PendingRequest) peering.Ask {
	return peering.Ask{
		Pool: r.Pool, NodeSelector: r.NodeSelector, Network: r.Network != v1alpha1.NetworkNone, RuntimeClasses: r.RuntimeClasses, StorageClasses: r.StorageClasses,
	}
}

// sameKind reports whether two asks are for the same nodes, network and classes,
// whatever their amounts and duration.
func sameKind(a, b peering.Ask) bool {
	return a.Pool == b.Pool && maps.Equal(a.NodeSelector, b.NodeSelector) && a.Network == b.Network &&
		slices.Equal(a.RuntimeClasses, b.RuntimeClasses) && slices.Equal(a.StorageClasses, b.StorageClasses)
}

// record adds a pending request to the peer's ForeignCluster, for administrators. If it
// is there already, record notes that it was repeated.
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
		return nil // one that comes too soon is recorded when it is repeated
	}
	pending.Time = metav1.NewTime(now)
	var added *v1alpha1.ForeignCluster
	err := p.editRequests(ctx, peer, func(fc *v1alpha1.ForeignCluster) error {
		added = nil
		// A request never changes once administrators can see it, and its ID is not used again. If the next ID
		// is another one, the cache was behind; the next repetition gets that.
		if pending.ID != nextID(fc, request) {
			return nil
		}
		// The peer no longer asks for what it asked for earlier by the same request.
		fc.Status.Requests = slices.DeleteFunc(fc.Status.Requests, func(r v1alpha1.PendingRequest) bool {
			return isRequest(r.ID, request) && !slices.Contains(fc.Spec.ApprovedRequests, r.ID)
		})
		if len(fc.Status.Requests) >= maxRequests {
			return &peering.Error{
				Reason: peering.ReasonPolicyPending, RetryAfter: requestTTL / maxRequests,
				Message: fmt.Sprintf("limit of %d requests that wait for an administrator of the provider reached", maxRequests),
			}
		}
		fc.Status.Requests, added = append(fc.Status.Requests, pending), fc
		return nil
	})
	if err == nil && added != nil && p.Events != nil {
		name := added.Name + "/" + pending.ID
		p.Events.Eventf(added, nil, corev1.EventTypeNormal, "RequestPending", "Negotiate",
			"a request waits for approval, and `entente requests` says for what: `entente approve request %s`, or `entente deny request %s`", name, name)
	}
	return err
}

func askedKey(peer peering.ClusterID, id string) string { return string(peer) + "/" + id }

// editRequests changes the pending requests in a peer's ForeignCluster, with a
// compare-and-swap, and records the IDs of those that are dropped.
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
		for _, r := range before.Status.Requests {
			if !slices.ContainsFunc(fc.Status.Requests, func(kept v1alpha1.PendingRequest) bool { return kept.ID == r.ID }) {
				fc.Status.DroppedRequests = dropped(fc.Status.DroppedRequests, r.ID)
			}
		}
		return store.PatchStatusLocked(ctx, p.Client, before, fc)
	})
}

// setApproval records in a contract who approved its request. That stays here: the terms do not have it.
func setApproval(contract *v1alpha1.Contract, fc *v1alpha1.ForeignCluster) {
	by := fc.RequestApproved(func(id string) bool { return isRequest(id, contract.Spec.RequestID) })
	if by == "" {
		delete(contract.Annotations, v1alpha1.AnnotationApprovedBy)
		return
	}
	metav1.SetMetaDataAnnotation(&contract.ObjectMeta, v1alpha1.AnnotationApprovedBy, by)
}

// dropped adds an ID to those of dropped requests, of which it keeps the last maxDropped. Of each request it keeps
// the ID with the highest number.
func dropped(ids []string, id string) []string {
	request := numbered.ReplaceAllString(id, "")
	ids = slices.DeleteFunc(slices.Clone(ids), func(other string) bool {
		same := isRequest(other, request)
		if same && numberOf(other) > numberOf(id) {
			id = other
		}
		return same
	})
	ids = append(ids, id)
	return ids[max(0, len(ids)-maxDropped):]
}

// dropFulfilled drops the requests that a contract fulfils, granted with these storage classes.
func (p *Provider) dropFulfilled(ctx context.Context, fc *v1alpha1.ForeignCluster, terms peering.Terms, storageClasses []string) {
	granted := peering.Ask{
		Resources: terms.Resources, Pool: terms.Pool, NodeSelector: terms.NodeSelector, Network: terms.Network,
		RuntimeClasses: terms.RuntimeClasses, StorageClasses: storageClasses,
	}
	if !slices.ContainsFunc(fc.Status.Requests, func(r v1alpha1.PendingRequest) bool { return isRequest(r.ID, terms.RequestID) }) {
		return
	}
	err := p.editRequests(ctx, terms.Consumer.ID, func(fc *v1alpha1.ForeignCluster) error {
		fc.Status.Requests = slices.DeleteFunc(fc.Status.Requests, func(r v1alpha1.PendingRequest) bool {
			return isRequest(r.ID, terms.RequestID) && fulfilled(&r, granted)
		})
		return nil
	})
	if err != nil {
		p.log().Warn("cannot drop a fulfilled request; it is dropped when it is old", "contract", terms.ContractID, "err", err)
	}
}

// fulfilled reports whether a contract grants what a request asks for. Any contract for the same nodes, network and
// classes fulfils a request that leaves the amounts to the policy.
func fulfilled(r *v1alpha1.PendingRequest, granted peering.Ask) bool {
	if !sameKind(kindOf(r), granted) {
		return false
	}
	if len(r.Resources) == 0 {
		return true
	}
	asked, err := store.Resources(r.Resources)
	if err != nil {
		return true
	}
	_, fits := asked.Fits(granted.Resources)
	return fits
}

// sweep drops requests that were denied, or that their peer no longer repeats.
func (p *Provider) sweep(ctx context.Context, started time.Time) {
	var list v1alpha1.ForeignClusterList
	if err := p.Client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil { // they are only read
		p.log().Warn("cannot list the requests that wait", "err", err)
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
				last = started // repetitions before are unknown
			}
			return now.Sub(last) >= requestTTL
		}
		gone := func(r v1alpha1.PendingRequest) bool {
			// An approved request stays: it records what was approved.
			return slices.Contains(fc.Spec.DeniedRequests, r.ID) || idle(r) && !slices.Contains(fc.Spec.ApprovedRequests, r.ID)
		}
		if slices.ContainsFunc(fc.Status.Requests, gone) {
			err := p.editRequests(ctx, peer, func(fc *v1alpha1.ForeignCluster) error {
				fc.Status.Requests = slices.DeleteFunc(fc.Status.Requests, gone)
				return nil
			})
			if err != nil {
				p.log().Warn("cannot drop requests that are not repeated", "peer", fc.Name, "err", err)
			}
		}
		for _, r := range fc.Status.Requests {
			kept[askedKey(peer, r.ID)] = true
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.asked, func(key string, at time.Time) bool { return !kept[key] && now.Sub(at) >= requestTTL })
	maps.DeleteFunc(p.recorded, func(_ peering.ClusterID, at time.Time) bool { return now.Sub(at) >= requestPause })
}
