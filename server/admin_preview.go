package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

// validatePeering has the API server check a ResourceSlice and peers say what
// they would offer. Nothing is written here or there.
func (s *adminServer) validatePeering(ctx context.Context, slice *v1alpha1.ResourceSlice) (*ententev1.CreatePeeringResponse, error) {
	ask, err := askOf(slice)
	if err != nil {
		return nil, err
	}
	if slice.Name == "" {
		slice.Name = nameFor("")
	}
	// What the API server makes of the slice is not what was asked for here.
	err = s.cfg.Client.Create(ctx, slice.DeepCopy(), ctrlclient.DryRunAll, ctrlclient.FieldOwner(adminFieldManager))
	if apierrors.IsAlreadyExists(err) {
		return s.peeringExists(ctx, slice)
	}
	if err != nil {
		return nil, fmt.Errorf("check resource slice %s: %w", slice.Name, err)
	}
	peers, err := s.candidates(ctx, slice)
	if err != nil {
		return nil, err
	}
	provider, best, err := s.preview(ctx, peers, ask, slice.Spec.ClusterSelector != nil)
	if err != nil {
		return nil, err
	}
	return &ententev1.CreatePeeringResponse{ResourceSlice: slice.Name, Provider: "peers/" + provider, Advertisement: previewMessage(best)}, nil
}

// previewMessage is an offer that binds nobody. The request that it answers was
// made up here and means nothing to a caller.
func previewMessage(a wire.Advertisement) *ententev1.Advertisement {
	m := wire.AdvertisementTo(a)
	m.RequestId = ""
	return m
}

// askOf is what a ResourceSlice asks a peer, as a request that nobody makes.
func askOf(slice *v1alpha1.ResourceSlice) (peering.Ask, error) {
	amounts := map[string]string{}
	for name, q := range slice.Spec.Resources {
		amounts[string(name)] = q.String()
	}
	resources, err := peering.ParseResources(amounts)
	if err != nil {
		return peering.Ask{}, badField("resources", "%s", wire.Text(err.Error(), wire.MaxMessageLen))
	}
	ask := peering.Ask{
		RequestID:      "preview-" + uuid.NewString(),
		Resources:      resources,
		Network:        slice.Spec.Network != v1alpha1.NetworkNone,
		NodeSelector:   slice.Spec.NodeSelector,
		StorageClasses: slice.Spec.StorageClasses,
		RuntimeClasses: slice.Spec.RuntimeClasses,
	}
	if slice.Spec.Duration != nil {
		ask.Duration = slice.Spec.Duration.Duration
	}
	if ask.PriceCeiling, err = wire.MoneyFrom("price_ceiling", moneyMessage(slice.Spec.PriceCeiling)); err != nil {
		return peering.Ask{}, err
	}
	return ask, nil
}

// candidates returns the peers that a ResourceSlice asks: the one that it names,
// or those that are trusted and selected, the first MaxPreviews by name.
func (s *adminServer) candidates(ctx context.Context, slice *v1alpha1.ResourceSlice) ([]v1alpha1.ForeignCluster, error) {
	if slice.Spec.ForeignCluster != "" {
		fc, err := s.foreignCluster(ctx, "peers/"+slice.Spec.ForeignCluster)
		if err != nil {
			return nil, err
		}
		return []v1alpha1.ForeignCluster{*fc}, nil
	}
	selector, err := metav1.LabelSelectorAsSelector(slice.Spec.ClusterSelector)
	if err != nil {
		return nil, badField("peer_selector", "%s", wire.Text(err.Error(), wire.MaxMessageLen))
	}
	list, err := s.foreignClusters(ctx)
	if err != nil {
		return nil, err
	}
	list = slices.DeleteFunc(list, func(fc v1alpha1.ForeignCluster) bool {
		return !trusted(&fc) || !fc.DeletionTimestamp.IsZero() || !selector.Matches(labels.Set(fc.Labels))
	})
	if len(list) == 0 {
		return nil, &wire.Error{Reason: wire.ReasonPeerUnknown, Message: "no trusted peer has the labels that are asked for"}
	}
	slices.SortFunc(list, byName)
	return list[:min(len(list), MaxPreviews)], nil
}

// previewRevision asks the provider what it would offer for a changed peering as
// the next revision of its contract. One without a contract has nobody to ask.
func (s *adminServer) previewRevision(ctx context.Context, slice *v1alpha1.ResourceSlice) (*ententev1.Advertisement, error) {
	if slice.Status.Contract == "" {
		return nil, nil //nolint:nilnil // nobody is an answer
	}
	var contract v1alpha1.Contract
	if err := s.cfg.Client.Get(ctx, ctrlclient.ObjectKey{Name: slice.Status.Contract}, &contract); err != nil {
		return nil, ctrlclient.IgnoreNotFound(err)
	}
	if closed(&contract) {
		return nil, nil //nolint:nilnil // as above
	}
	ask, err := askOf(slice)
	if err != nil {
		return nil, err
	}
	ask.RequestID, ask.ContractID = contract.Spec.RequestID, contract.Name
	ctx, cancel := context.WithTimeout(ctx, PreviewTimeout)
	defer cancel()
	ad, err := s.cfg.Preview(ctx, peering.ClusterID(contract.Spec.PeerID), ask)
	if err != nil {
		return nil, previewError(contract.Spec.ForeignCluster, err)
	}
	return previewMessage(ad), nil
}

// preview asks peers at once what they would offer, and returns the offer that
// would be taken, and whose it is. Where none is, the error is the first peer's.
// Who chooses among peers takes no offer that waits for an administrator.
func (s *adminServer) preview(
	ctx context.Context, peers []v1alpha1.ForeignCluster, ask peering.Ask, chooses bool,
) (provider string, best wire.Advertisement, err error) {
	offers := make([]wire.Advertisement, len(peers))
	failures := make([]error, len(peers))
	var group errgroup.Group
	group.SetLimit(MaxPreviewsAtOnce)
	for i := range peers {
		group.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, PreviewTimeout)
			defer cancel()
			offers[i], failures[i] = s.cfg.Preview(ctx, peering.ClusterID(peers[i].Spec.ClusterID), ask)
			if failures[i] == nil && chooses && offers[i].NeedsApproval {
				failures[i] = wire.Errorf(wire.ReasonPolicyPending, "an administrator there has to approve each request: ask it by its name")
			}
			return nil
		})
	}
	_ = group.Wait() // each says what became of it
	var (
		candidates []peering.Candidate
		from       []int
	)
	for i := range peers {
		if failures[i] != nil {
			continue
		}
		hourly, err := offers[i].Grant.Price.Hourly(offers[i].Grant.Resources)
		if err != nil {
			failures[i] = fmt.Errorf("price of what %s offers: %w", peers[i].Name, err)
			continue
		}
		candidates = append(candidates, peering.Candidate{
			Peer: peering.ClusterID(peers[i].Spec.ClusterID), Hourly: hourly, RoundTrip: roundTrip(&peers[i]),
		})
		from = append(from, i)
	}
	if len(candidates) > 0 {
		i := from[peering.Cheapest(candidates, ask.PriceCeiling.Currency)[0]]
		return peers[i].Name, offers[i], nil
	}
	if len(peers) == 1 {
		return "", best, previewError(peers[0].Name, failures[0])
	}
	for i := range peers {
		failures[i] = previewError(peers[i].Name, failures[i])
	}
	first := wire.FromStatus(failures[0])
	return "", best, &wire.Error{
		Reason: first.Reason, Metadata: first.Metadata, RetryAfter: first.RetryAfter, Violations: first.Violations,
		Message: fmt.Sprintf("none of %d peers offers it; %s", len(peers), failures[0]), Err: errors.Join(failures...),
	}
}

// previewError says which peer said no. Reasons are the peer's own; a peer that
// did not answer is unreachable.
func previewError(name string, err error) error {
	e := *wire.FromStatus(err)
	if grant := (*peering.GrantError)(nil); errors.As(err, &grant) {
		e = *grantError(grant)
	}
	switch e.Reason.Code() {
	case codes.Internal: // also a bare code, which is no reason of ours
		switch status.Code(err) {
		case codes.Unavailable, codes.DeadlineExceeded:
			e.Reason = wire.ReasonPeerUnreachable
		default:
			if !errors.Is(err, context.DeadlineExceeded) {
				return fmt.Errorf("ask peer %s: %w", name, err)
			}
			e.Reason, e.Message = wire.ReasonPeerUnreachable, "it did not answer in time"
		}
	default:
	}
	e.Message = fmt.Sprintf("peer %s: %s", name, e.Message)
	e.Err = err
	return &e
}

func roundTrip(fc *v1alpha1.ForeignCluster) time.Duration {
	if fc.Status.Session == nil || fc.Status.Session.RoundTrip == nil {
		return 0
	}
	return fc.Status.Session.RoundTrip.Duration
}

func byName(a, b v1alpha1.ForeignCluster) int { return cmp.Compare(a.Name, b.Name) }
