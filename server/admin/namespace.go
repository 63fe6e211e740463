package admin

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/durationpb"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/server/internal/middleware"
)

// OffloadNamespace implements AdminService: it writes a NamespaceOffloading.
func (s *service) OffloadNamespace(ctx context.Context, req *ententev1.OffloadNamespaceRequest) (*ententev1.OffloadNamespaceResponse, error) {
	namespace := namespaceName(req.GetNamespace())
	var ns corev1.Namespace
	if err := s.cfg.Client.Get(ctx, ctrlclient.ObjectKey{Name: namespace}, &ns); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, peering.Errorf(peering.ReasonNamespaceUnknown, "there is no namespace %s", namespace)
		}
		return nil, fmt.Errorf("get namespace %s: %w", namespace, err)
	}
	selector, err := s.selectPeers(ctx, req.GetPeers())
	if err != nil {
		return nil, err
	}
	want := offloadingSpec(req, selector)
	if chosen := want.NameMapping == v1alpha1.MappingChosen; chosen != (want.RemoteName != "") {
		return nil, peering.Errorf(peering.ReasonRequestInvalid, "remote_name goes with the mapping %s, and with no other", v1alpha1.MappingChosen)
	}
	key := ctrlclient.ObjectKey{Namespace: namespace, Name: v1alpha1.NamespaceOffloadingName}
	old, err := s.currentOffloading(ctx, key)
	switch {
	case apierrors.IsNotFound(err):
		want.NameMapping, want.PodStrategy = cmp.Or(want.NameMapping, v1alpha1.MappingSuffixed), cmp.Or(want.PodStrategy, v1alpha1.StrategyLocalAndRemote)
		o := &v1alpha1.NamespaceOffloading{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: key.Name}, Spec: want}
		if err := s.cfg.Client.Create(ctx, o, ctrlclient.FieldOwner(adminFieldManager)); err != nil {
			return nil, fmt.Errorf("create namespace offloading in %s: %w", namespace, err)
		}
		s.awaitPlacement(ctx, namespace)
		return &ententev1.OffloadNamespaceResponse{}, nil
	case err != nil:
		return nil, fmt.Errorf("get namespace offloading in %s: %w", namespace, err)
	}
	err = change(ctx, s.cfg.Client, old, func() error {
		want, err := changedSpec(req, selector, &old.Spec)
		if err != nil {
			return err
		}
		old.Spec = want
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("change namespace offloading in %s: %w", namespace, err)
	}
	return &ententev1.OffloadNamespaceResponse{}, nil
}

// changedSpec returns the spec that a request asks for of a namespace that is offloaded.
func changedSpec(req *ententev1.OffloadNamespaceRequest, selector *metav1.LabelSelector, old *v1alpha1.NamespaceOffloadingSpec) (v1alpha1.NamespaceOffloadingSpec, error) {
	want := offloadingSpec(req, selector)
	if want.NameMapping == "" {
		want.NameMapping, want.RemoteName = old.NameMapping, old.RemoteName
	}
	if want.NameMapping != old.NameMapping || want.RemoteName != old.RemoteName {
		namespace := namespaceName(req.GetNamespace())
		return want, peering.Errorf(peering.ReasonMappingFixed, "namespace %s is offloaded with mapping %s, which never changes: `entente unoffload namespace %s` first",
			namespace, strings.TrimSpace(string(old.NameMapping)+" "+old.RemoteName), namespace)
	}
	keepUnset(&want, old, req)
	return want, nil
}

// offloadingSpec returns the spec that a request asks for.
func offloadingSpec(req *ententev1.OffloadNamespaceRequest, selector *metav1.LabelSelector) v1alpha1.NamespaceOffloadingSpec {
	want := v1alpha1.NamespaceOffloadingSpec{
		PodStrategy:     v1alpha1.PodStrategy(req.GetPodStrategy()),
		NameMapping:     v1alpha1.NameMapping(req.GetNameMapping()),
		RemoteName:      req.GetRemoteName(),
		ClusterSelector: selector,
		Misplaced:       v1alpha1.MisplacedStay,
		HomeAPI:         v1alpha1.HomeAPI(req.GetHomeApi()),
	}
	if want.NameMapping == "" && want.RemoteName != "" {
		want.NameMapping = v1alpha1.MappingChosen
	}
	if req.GetMove() {
		want.Misplaced = v1alpha1.MisplacedMove
	}
	for _, namespace := range req.GetOpenTo().GetNamespaces() {
		want.OpenTo = append(want.OpenTo, openToOf(namespaceName(namespace), anyNamespace, v1alpha1.AllNamespaces))
	}
	if p := req.GetPeerLost(); p != nil {
		want.PeerLost = &v1alpha1.PeerLost{Action: v1alpha1.PeerLostAction(p.GetAction())}
		if after := p.GetAfter(); after != nil {
			want.PeerLost.After = &metav1.Duration{Duration: after.AsDuration()}
		}
	}
	return want
}

// anyNamespace means all namespaces, in namespaces/-.
const anyNamespace = "-"

// openToOf returns a namespace's name, and for all namespaces what stands for them elsewhere.
func openToOf(namespace, all, there string) string {
	if namespace == all {
		return there
	}
	return namespace
}

// openTo returns the namespaces that one is open to, by their names in this API.
func openTo(o *v1alpha1.NamespaceOffloading) (names []string) {
	for _, namespace := range o.Spec.OpenTo {
		names = append(names, "namespaces/"+openToOf(namespace, v1alpha1.AllNamespaces, anyNamespace))
	}
	return names
}

// keepUnset sets what a request leaves out to what it is.
func keepUnset(want, old *v1alpha1.NamespaceOffloadingSpec, req *ententev1.OffloadNamespaceRequest) {
	if req.Move == nil {
		want.Misplaced = old.Misplaced
	}
	if len(req.GetPeers()) == 0 {
		want.ClusterSelector = old.ClusterSelector
	}
	if req.GetOpenTo() == nil {
		want.OpenTo = old.OpenTo
	}
	want.PodStrategy = cmp.Or(want.PodStrategy, old.PodStrategy)
	want.Unschedulable = old.Unschedulable // this call cannot set it
	want.PeerLost = cmp.Or(want.PeerLost, old.PeerLost)
	want.HomeAPI = cmp.Or(want.HomeAPI, old.HomeAPI)
}

// currentOffloading returns the NamespaceOffloading of a namespace. It waits until one that is
// being deleted is gone, since writes to that are lost.
func (s *service) currentOffloading(ctx context.Context, key ctrlclient.ObjectKey) (*v1alpha1.NamespaceOffloading, error) {
	var o *v1alpha1.NamespaceOffloading
	err := wait.PollUntilContextTimeout(ctx, unoffloadPoll, unoffloadWait, true, func(ctx context.Context) (bool, error) {
		o = &v1alpha1.NamespaceOffloading{}
		err := s.cfg.Client.Get(ctx, key, o)
		return o.DeletionTimestamp.IsZero(), err
	})
	if wait.Interrupted(err) && ctx.Err() == nil {
		why := "its pods abroad are still ending"
		if o.Status.State == v1alpha1.OffloadingTerminating && o.Status.Message != "" {
			why = o.Status.Message
		}
		return nil, peering.Errorf(peering.ReasonPodsRunning,
			"namespace %s is still being taken back from an unoffload before: %s; offload it again when that is done", key.Namespace, why)
	}
	return o, err
}

// awaitPlacement waits until the agent labelled the namespace, from when on its new pods are
// placed as its offloading says: callers usually create pods next. An agent that is slow to label
// does not fail the call.
func (s *service) awaitPlacement(ctx context.Context, namespace string) {
	_ = wait.PollUntilContextTimeout(ctx, unoffloadPoll, placementWait, true, func(ctx context.Context) (bool, error) {
		var ns corev1.Namespace
		err := s.cfg.Client.Get(ctx, ctrlclient.ObjectKey{Name: namespace}, &ns)
		return ns.Labels[v1alpha1.LabelOffloading] == "enabled", err
	})
}

// selectPeers returns a selector of the named peers by the label with their cluster ID. Without
// names, and for peers/-, it returns nil, which selects all.
func (s *service) selectPeers(ctx context.Context, names []string) (*metav1.LabelSelector, error) {
	all := slices.ContainsFunc(names, func(name string) bool { return peerName(name) == anyPeer })
	if all && len(names) > 1 {
		return nil, middleware.BadField("peers", "peers/- are all peers: name no others")
	}
	if all || len(names) == 0 {
		return nil, nil //nolint:nilnil // no selector is what selects all
	}
	ids := make(map[string]bool, len(names))
	for i, name := range names {
		fc, err := s.foreignCluster(ctx, name)
		if err != nil {
			return nil, err
		}
		if fc.Labels[v1alpha1.LabelPeer] != fc.Spec.ClusterID {
			before := fc.DeepCopy()
			metav1.SetMetaDataLabel(&fc.ObjectMeta, v1alpha1.LabelPeer, fc.Spec.ClusterID)
			if err := s.cfg.Client.Patch(ctx, fc, ctrlclient.MergeFrom(before), ctrlclient.FieldOwner(adminFieldManager)); err != nil {
				return nil, fmt.Errorf("label foreign cluster %s: %w", names[i], err)
			}
		}
		ids[fc.Spec.ClusterID] = true
	}
	return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
		Key: v1alpha1.LabelPeer, Operator: metav1.LabelSelectorOpIn, Values: slices.Sorted(maps.Keys(ids)),
	}}}, nil
}

func (s *service) ListOffloadings(ctx context.Context, req *ententev1.ListOffloadingsRequest) (*ententev1.ListOffloadingsResponse, error) {
	var list v1alpha1.NamespaceOffloadingList
	if err := s.cfg.Client.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("list namespace offloadings: %w", err)
	}
	part, next, err := pageOf(req, "offloadings", list.Items, func(o *v1alpha1.NamespaceOffloading) string { return o.Namespace }, offloadingMessage)
	return &ententev1.ListOffloadingsResponse{Offloadings: part, NextPageToken: next}, err
}

func offloadingMessage(o *v1alpha1.NamespaceOffloading) *ententev1.Offloading {
	m := &ententev1.Offloading{
		Namespace: "namespaces/" + o.Namespace, PodStrategy: string(o.Spec.PodStrategy), NameMapping: string(o.Spec.NameMapping),
		State: o.Status.State, Message: o.Status.Message, CreateTime: writeTime(o.CreationTimestamp),
		HomeApi: string(o.Spec.HomeAPI),
	}
	if !o.DeletionTimestamp.IsZero() {
		m.State = v1alpha1.OffloadingTerminating
	}
	if p := o.Status.Misplaced; p != nil {
		m.MisplacedPods, m.MisplacedMessage = p.Pods, p.Message
	}
	m.OpenTo = openTo(o)
	if p := o.Spec.PeerLost; p != nil {
		m.PeerLost = &ententev1.PeerLost{Action: string(p.Action)}
		if p.After != nil {
			m.PeerLost.After = durationpb.New(p.After.Duration)
		}
	}
	for _, c := range o.Status.Clusters {
		in := &ententev1.OffloadingInCluster{
			Peer: "peers/" + c.ForeignCluster, RemoteName: c.RemoteName, State: c.State, Message: c.Message, Contract: c.Contract,
		}
		if c.Fence != nil {
			in.Fence = durationpb.New(c.Fence.Duration)
		}
		m.Clusters = append(m.Clusters, in)
	}
	return m
}

func (s *service) UnoffloadNamespace(ctx context.Context, req *ententev1.UnoffloadNamespaceRequest) (*ententev1.UnoffloadNamespaceResponse, error) {
	namespace := namespaceName(req.GetNamespace())
	var o v1alpha1.NamespaceOffloading
	err := s.cfg.Client.Get(ctx, ctrlclient.ObjectKey{Namespace: namespace, Name: v1alpha1.NamespaceOffloadingName}, &o)
	if apierrors.IsNotFound(err) {
		return nil, peering.Errorf(peering.ReasonNamespaceNotOffloaded, "namespace %s is not offloaded", namespace)
	}
	if err != nil {
		return nil, fmt.Errorf("get namespace offloading in %s: %w", namespace, err)
	}
	if err := s.remove(ctx, &o); err != nil {
		return nil, fmt.Errorf("delete namespace offloading in %s: %w", namespace, err)
	}
	resp := &ententev1.UnoffloadNamespaceResponse{}
	if o.DeletionTimestamp.IsZero() { // else it ended before
		resp.OpenTo = openTo(&o)
	}
	return resp, nil
}
