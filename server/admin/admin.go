package admin

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/util/retry"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/peering"
)

// adminFieldManager is the field manager of administrators' changes, which tells them apart from
// those of the reconcilers.
const adminFieldManager = "entente-admin"

// service is the AdminService. It reads and writes custom resources, and calls what Config
// names for tokens, joining, previews and the rollover of keys.
type service struct {
	ententev1.UnimplementedAdminServiceServer
	cfg Config
}

func (s *service) GetInfo(ctx context.Context, _ *ententev1.GetInfoRequest) (*ententev1.GetInfoResponse, error) {
	self, err := s.cfg.Self(ctx)
	if err != nil {
		return nil, fmt.Errorf("describe this cluster: %w", err)
	}
	var peers v1alpha1.ForeignClusterList
	var asks v1alpha1.PeeringRequestList
	var policies v1alpha1.PeeringPolicyList
	if err := readAll(ctx, s.cfg.Client, &peers, &asks, &policies); err != nil {
		return nil, err
	}
	snapshot, err := s.snapshot(ctx, s.cfg.Client)
	if err != nil {
		return nil, err
	}
	prefixes, sources := snapshot.podPrefixes()
	return &ententev1.GetInfoResponse{
		ClusterId:             string(self.ID),
		ClusterName:           self.Name,
		Version:               self.Version,
		Endpoints:             self.Endpoints,
		Peers:                 int32(len(peers.Items)),
		Protocol:              self.Protocol,
		RootExpireTime:        timeMessage(self.RootExpires),
		CertificateExpireTime: timeMessage(self.CertificateExpires),
		Problems:              snapshot.problems(self, peers.Items, asks.Items, policies.Items),
		Fingerprint:           self.Fingerprint,
		Automatic:             self.Automatic,
		DnsPublications:       publicationMessages(self.DNS),
		DnsDomains:            domainMessages(self.Domains),
		Placement:             self.Placement,
		PodPrefixes:           prefixes,
		PodPrefixSources:      sources,
	}, nil
}

// podPrefixes returns the prefixes of this cluster's pods, and where they were learnt, which all FabricNodes have.
func (v *snapshot) podPrefixes() (prefixes, sources []string) {
	for i := range v.nodes {
		if spec := &v.nodes[i].Spec; len(spec.ClusterPodCIDRs) > 0 {
			return spec.ClusterPodCIDRs, spec.ClusterPodCIDRSources
		}
	}
	return nil, nil
}

func publicationMessages(list []DNSPublication) (out []*ententev1.DNSPublication) {
	for _, p := range list {
		out = append(out, &ententev1.DNSPublication{
			Domain: p.Domain, Zone: p.Zone, Server: p.Server, Instance: p.Instance, Host: p.Host,
			LastConfirmedTime: timeMessage(p.Confirmed), Removing: p.Leaving, Problem: p.Problem,
		})
	}
	return out
}

// domainMessages returns the domains, those that cannot be queried first.
func domainMessages(list []DNSDomain) (out []*ententev1.DNSDomain) {
	list = slices.SortedFunc(slices.Values(list), func(a, b DNSDomain) int {
		return cmp.Or(cmp.Compare(listed(a), listed(b)), cmp.Compare(a.Domain, b.Domain))
	})
	for _, d := range list[:min(len(list), MaxDNSDomains)] {
		out = append(out, &ententev1.DNSDomain{
			Domain: d.Domain, Clusters: int32(d.Clusters), LastResponseTime: timeMessage(d.Answered), Error: d.Error, ErrorStartTime: timeMessage(d.Since),
			Problems: d.Problems, Omitted: int32(d.LeftOut), Authenticated: d.Authenticated,
		})
	}
	return out
}

func listed(d DNSDomain) int {
	if d.Unlisted {
		return 0
	}
	return 1
}

// readAll reads all objects of some kinds.
func readAll(ctx context.Context, from ctrlclient.Reader, lists ...ctrlclient.ObjectList) error {
	for _, list := range lists {
		if err := from.List(ctx, list); err != nil {
			return fmt.Errorf("read %T: %w", list, err)
		}
	}
	return nil
}

func (s *service) foreignClusters(ctx context.Context) ([]v1alpha1.ForeignCluster, error) {
	var list v1alpha1.ForeignClusterList
	err := readAll(ctx, s.cfg.Client, &list)
	return list.Items, err
}

// foreignCluster finds a peer by peers/NAME, where NAME is that of its
// ForeignCluster or its cluster ID.
func (s *service) foreignCluster(ctx context.Context, resource string) (*v1alpha1.ForeignCluster, error) {
	name := peerName(resource)
	var fc v1alpha1.ForeignCluster
	err := s.cfg.Client.Get(ctx, ctrlclient.ObjectKey{Name: name}, &fc)
	if err == nil {
		return &fc, nil
	}
	if !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("get foreign cluster %s: %w", name, err)
	}
	if _, err := peering.ParseClusterID(name); err == nil {
		list, err := s.foreignClusters(ctx)
		if err != nil {
			return nil, err
		}
		if fc := byClusterID(list, name); fc != nil {
			return fc, nil
		}
	}
	return nil, unknown(peering.ReasonPeerUnknown, "peer", name, "no peer %q is known here; `entente info peer` lists those that are", name)
}

// byClusterID returns the ForeignCluster of a cluster; where there are several,
// one that is trusted, then the oldest.
func byClusterID(list []v1alpha1.ForeignCluster, id string) *v1alpha1.ForeignCluster {
	var found *v1alpha1.ForeignCluster
	for i := range list {
		fc := &list[i]
		if fc.Spec.ClusterID != id {
			continue
		}
		if found == nil || trusted(fc) && !trusted(found) ||
			trusted(fc) == trusted(found) && fc.CreationTimestamp.Before(&found.CreationTimestamp) {
			found = fc
		}
	}
	return found
}

func trusted(fc *v1alpha1.ForeignCluster) bool {
	return meta.IsStatusConditionTrue(fc.Status.Conditions, v1alpha1.ConditionTrusted)
}

// change reads an object, calls mutate to change it, and writes it. If the object was written
// meanwhile, it starts again.
func change[T ctrlclient.Object](ctx context.Context, c ctrlclient.Client, o T, mutate func() error, opts ...ctrlclient.PatchOption) error {
	key := ctrlclient.ObjectKeyFromObject(o)
	opts = append(slices.Clone(opts), ctrlclient.FieldOwner(adminFieldManager))
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		if err := c.Get(ctx, key, o); err != nil {
			return err
		}
		before, _ := o.DeepCopyObject().(ctrlclient.Object)
		if err := mutate(); err != nil {
			return err
		}
		return c.Patch(ctx, o, ctrlclient.MergeFromWithOptions(before, ctrlclient.MergeFromWithOptimisticLock{}), opts...)
	})
}

// remove deletes the object that was read, and not a newer one of its name.
func (s *service) remove(ctx context.Context, o ctrlclient.Object) error {
	if !o.GetDeletionTimestamp().IsZero() {
		return nil
	}
	uid := o.GetUID()
	err := s.cfg.Client.Delete(ctx, o, ctrlclient.Preconditions{UID: &uid})
	return ctrlclient.IgnoreNotFound(err)
}

// named returns the last part of a name such as peerings/NAME.
func named(collection, name string) string { return strings.TrimPrefix(name, collection+"/") }

// unknown is the error that something does not exist; key and value name it for programs.
func unknown(reason peering.Reason, key, value, format string, args ...any) error {
	return &peering.Error{Reason: reason, Message: fmt.Sprintf(format, args...), Metadata: map[string]string{key: value}}
}

// timeMessage writes a time. It returns nil for the zero time.
func timeMessage(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

func byName(a, b v1alpha1.ForeignCluster) int { return cmp.Compare(a.Name, b.Name) }
