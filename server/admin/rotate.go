package admin

import (
	"context"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/peering"
)

// RotatePresharedKey implements AdminService: it writes the annotation that asks for another key,
// on which the agents of both sides act.
func (s *service) RotatePresharedKey(ctx context.Context, req *ententev1.RotatePresharedKeyRequest) (*ententev1.RotatePresharedKeyResponse, error) {
	peers, err := s.peersOrOne(ctx, req.GetName())
	if err != nil {
		return nil, err
	}
	var tunnels v1alpha1.TunnelList
	if err := readAll(ctx, s.cfg.Client, &tunnels); err != nil {
		return nil, err
	}
	// The status of a peer keeps the key that its tunnel had.
	peers = slices.DeleteFunc(peers, func(fc v1alpha1.ForeignCluster) bool {
		ofPeer := func(t v1alpha1.Tunnel) bool { return t.Spec.PeerID == fc.Spec.ClusterID }
		return fc.Status.PresharedKey == nil || !slices.ContainsFunc(tunnels.Items, ofPeer)
	})
	slices.SortFunc(peers, byName)
	asked := askTime(s.cfg.Now())
	resp := &ententev1.RotatePresharedKeyResponse{RequestTime: timestamppb.New(asked)}
	for i := range peers {
		fc := &peers[i]
		err := s.changePeer(ctx, fc, func() error {
			annotate(&fc.ObjectMeta, asked)
			return nil
		})
		if err != nil {
			return nil, err
		}
		resp.Peers = append(resp.Peers, "peers/"+fc.Name)
	}
	return resp, nil
}

// RotateNodeKeys implements AdminService: it writes the annotation that asks for another key, on
// which the fabrics of the nodes act.
func (s *service) RotateNodeKeys(ctx context.Context, req *ententev1.RotateNodeKeysRequest) (*ententev1.RotateNodeKeysResponse, error) {
	var list v1alpha1.FabricNodeList
	if err := readAll(ctx, s.cfg.Client, &list); err != nil {
		return nil, err
	}
	wanted := req.GetNodes()
	for _, name := range wanted {
		if !slices.ContainsFunc(list.Items, func(n v1alpha1.FabricNode) bool { return n.Name == name }) {
			return nil, unknown(peering.ReasonRequestInvalid, "node", name, "no node %s of this cluster has a fabric", name)
		}
	}
	asked := askTime(s.cfg.Now())
	resp := &ententev1.RotateNodeKeysResponse{RequestTime: timestamppb.New(asked)}
	for i := range list.Items {
		n := &list.Items[i]
		if len(wanted) > 0 && !slices.Contains(wanted, n.Name) {
			continue
		}
		err := change(ctx, s.cfg.Client, n, func() error {
			annotate(&n.ObjectMeta, asked)
			return nil
		})
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, err
		}
		resp.Nodes = append(resp.Nodes, n.Name)
	}
	slices.Sort(resp.GetNodes())
	return resp, nil
}

func annotate(o *metav1.ObjectMeta, asked time.Time) {
	metav1.SetMetaDataAnnotation(o, v1alpha1.AnnotationRotateKey, asked.Format(time.RFC3339))
}

// askTime is the time since which a key has to be in use to count as another one. The time since
// which a key is in use has whole seconds.
func askTime(now time.Time) time.Time {
	return now.UTC().Add(time.Second - time.Nanosecond).Truncate(time.Second)
}
