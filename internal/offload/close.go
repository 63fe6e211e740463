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

// Exposed returns the addresses of a contract's live pods, which the peer may reach. known is false
// until this cluster's pods are known, a moment after a start.
func (p *Provider) Exposed(contract string) (out []netip.Addr, known bool) {
	pods, known := p.addresses(contract)
	for _, in := range pods {
		for _, addrs := range in {
			out = append(out, addrs...)
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out), known
}

// Left is what is left of a contract.
type Left struct {
	// Pods is how many OffloadedPods still exist.
	Pods int
	// Namespaces is how many namespaces the contract still holds, or held and are being deleted.
	Namespaces int
}

// None reports whether nothing is left.
func (l Left) None() bool { return l == Left{} }

// CloseContract removes everything that is here for a contract: first its pods, with a grace period
// of at most 30 s; once they are gone, the contents of their namespaces, and the namespaces that no
// other contract uses. It does one step and returns what is left: call it again until nothing is.
// It needs neither the consumer nor anything of the contract but its ID and peer, and may be called
// for a contract that has nothing here. The caller makes sure that Contracts no longer returns the
// contract, or returns it without AcceptNew.
func (p *Provider) CloseContract(ctx context.Context, peer peering.ClusterID, contract string) (Left, error) {
	if err := checkContract(contract); err != nil {
		return Left{}, err
	}
	if err := p.await(ctx); err != nil {
		return Left{}, err
	}
	// A peering ends at once, however much its peer made us write.
	ctx = paced.Urgent(ctx)
	// No apply that began before the contract was over may end after this.
	release, err := p.locks.Lock(ctx, "contract/"+contract)
	if err != nil {
		return Left{}, err
	}
	defer release()
	var left Left
	var problems []error
	// Pods that were reserved before the contract was over may have been created since.
	if err := p.confirmReserved(ctx, contract); err != nil {
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

// closingGrace is the grace period of a pod whose contract is over: the shorter of its own and
// closeGrace, or the one with which it was deleted.
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

// holdsSpace reports whether a contract holds a namespace, or something in it. A namespace without
// a record counts for any contract of the peer, as none got as far as recording its use; but
// contracts that have pods in it come first.
func (p *Provider) holdsSpace(ctx context.Context, contract string, ns *corev1.Namespace) (bool, error) {
	record, err := p.readRecord(ctx, ns.Name)
	if record != nil {
		_, ok := heldBy(record, contract)
		return ok || len(holders(record)) == 0, nil
	}
	if err == nil && ns.Labels[api.LabelRetained] != "" {
		return false, nil
	}
	if err != nil && ns.DeletionTimestamp == nil && !apierrors.IsForbidden(err) {
		return false, err
	}
	return !slices.ContainsFunc(p.inv.in(ns.Name), func(o *api.OffloadedPod) bool { return o.Spec.Contract != contract }), nil
}
