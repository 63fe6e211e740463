package offload

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	api "github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/paced"
	"github.com/entente-dev/entente/peering"
)

// Exposed returns the addresses of a contract's live pods here: what the peer
// may reach, and whether those are all: after a start it takes a moment until this
// cluster's pods are known. Pods in the network of their node have none.
func (p *Provider) Exposed(contract string) (out []netip.Addr, known bool) {
	if !p.inv.known() {
		return nil, false
	}
	known = true
	for _, o := range p.inv.of(contract) {
		if !live(o) {
			continue
		}
		pod, seen := p.inv.pod(o.Namespace, o.Name)
		if !seen {
			known = false
			continue
		}
		if pod == nil || pod.Spec.HostNetwork || ended(pod.Status.Phase) || string(pod.UID) != o.Status.PodUID {
			continue
		}
		for _, ip := range append(slices.Clone(pod.Status.PodIPs), corev1.PodIP{IP: pod.Status.PodIP}) {
			if a, err := netip.ParseAddr(ip.IP); err == nil {
				out = append(out, a)
			}
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out), known
}

// Left says what is left of a contract.
type Left struct {
	// Pods is how many OffloadedPods there still are.
	Pods int
	// Namespaces is how many namespaces the contract still holds, or that are
	// being deleted after it held them.
	Namespaces int
}

// None says that nothing is left.
func (l Left) None() bool { return l == Left{} }

// CloseContract takes away everything that is here for a contract: first its
// pods, with at most 30 s of grace; when they are gone what is in their
// namespaces; and the namespaces that no other contract uses. It does one step
// and returns what is left: call it again until nothing is. It needs nothing
// of the consumer, and nothing of the contract but its ID and peer; calling it
// for a contract of which there is nothing is fine. The caller sees to it that Contracts
// no longer returns the contract, or no longer with AcceptNew.
func (p *Provider) CloseContract(ctx context.Context, peer peering.ClusterID, contract string) (Left, error) {
	if err := checkContract(contract); err != nil {
		return Left{}, err
	}
	if err := p.await(ctx); err != nil {
		return Left{}, err
	}
	// A peering ends at once, whatever its peer made us write.
	ctx = paced.Urgent(ctx)
	// Nobody who began to apply before the contract was over may end after this.
	release, err := p.locks.Lock(ctx, "contract/"+contract)
	if err != nil {
		return Left{}, err
	}
	defer release()
	var left Left
	var problems []error
	// Pods that were reserved before the contract was over may still be created.
	if err := p.settle(ctx, contract); err != nil {
		return Left{}, err
	}
	coming := p.ledger.Coming(contract)
	err = p.eachPod(ctx, contract, func(o *api.OffloadedPod) {
		delete(coming, o.Spec.OriginUID)
		left.Pods++
		if o.DeletionTimestamp != nil {
			p.inv.touch(o.Namespace, o.Name, contract) // its end may have been kept for the consumer
		}
		if err := p.endPod(ctx, o, p.closingGrace(o)); err != nil {
			problems = append(problems, fmt.Errorf("pod %s/%s: %w", o.Namespace, o.Name, err))
		}
	})
	if err != nil {
		return Left{}, err
	}
	left.Pods += len(coming)
	spaces, err := p.peerNamespaces(ctx, peer)
	if err != nil {
		return Left{}, err
	}
	for _, ns := range spaces {
		holds, err := p.holdsSpace(ctx, contract, ns)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		if !holds {
			continue
		}
		left.Namespaces++
		if left.Pods > 0 || ns.DeletionTimestamp != nil {
			continue
		}
		var refusal *peering.Refusal
		if err := p.vacate(ctx, contract, ns); err != nil && !errors.As(err, &refusal) {
			problems = append(problems, fmt.Errorf("namespace %s: %w", ns.Name, err))
		}
	}
	return left, errors.Join(problems...)
}

// closingGrace is the grace period of a pod whose contract is over: its own, or
// closeGrace if that is shorter, or what it was deleted with.
func (p *Provider) closingGrace(o *api.OffloadedPod) *int64 {
	g := closeGrace
	if asked := grace(o); asked != nil {
		g = min(g, *asked)
	}
	if pod, _ := p.inv.pod(o.Namespace, o.Name); pod != nil && pod.Spec.TerminationGracePeriodSeconds != nil {
		g = min(g, *pod.Spec.TerminationGracePeriodSeconds)
	}
	return new(max(g, 0))
}

// holdsSpace says whether a contract holds a namespace, or something in it. A
// namespace without a record is held by whichever of the peer's contracts asks: none got
// as far as recording that it uses it. But those that have pods in it come first.
func (p *Provider) holdsSpace(ctx context.Context, contract string, ns *corev1.Namespace) (bool, error) {
	record, err := p.readRecord(ctx, ns.Name)
	if record != nil {
		_, ok := heldBy(record, contract)
		return ok || len(holders(record)) == 0, nil
	}
	if err == nil && ns.Labels[api.LabelKept] != "" {
		return false, nil
	}
	if err != nil && ns.DeletionTimestamp == nil && !apierrors.IsForbidden(err) {
		return false, err
	}
	return !slices.ContainsFunc(p.inv.in(ns.Name), func(o *api.OffloadedPod) bool { return o.Spec.Contract != contract }), nil
}
