package reflection

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/peering"
)

// ReadConfig decodes a consumer's ConfigMap or Secret: its data, and a Secret's type. The result is
// never immutable, so that it can follow its original.
func ReadConfig(o peering.Object) (client.Object, error) {
	if o.Ref.Kind == peering.KindConfigMap {
		var in corev1.ConfigMap
		if err := json.Unmarshal(o.JSON, &in); err != nil {
			return nil, invalid("read %s: %v", o.Ref, err)
		}
		return &corev1.ConfigMap{Data: in.Data, BinaryData: in.BinaryData}, nil
	}
	var in corev1.Secret
	if err := json.Unmarshal(o.JSON, &in); err != nil {
		// The error of encoding/json may quote the secret.
		return nil, invalid("%s is not a Secret in JSON", o.Ref)
	}
	// Controllers act on Secrets of these types: they would write a credential of this cluster into
	// it, or accept it as one.
	if in.Type == corev1.SecretTypeServiceAccountToken || strings.HasPrefix(string(in.Type), "bootstrap.kubernetes.io/") {
		return nil, invalid("%s is of type %s, a cluster credential, which does not cross", o.Ref, in.Type)
	}
	out := &corev1.Secret{Type: in.Type, Data: in.Data}
	for k, v := range in.StringData {
		if out.Data == nil {
			out.Data = make(map[string][]byte)
		}
		out.Data[k] = []byte(v)
	}
	if out.Type == "" {
		out.Type = corev1.SecretTypeOpaque
	}
	return out, nil
}

// Content returns a hash of the contents of a ConfigMap or Secret.
func Content(o client.Object) string {
	h := sha256.New()
	switch o := o.(type) {
	case *corev1.ConfigMap:
		addContent(h, o.Data)
		addContent(h, o.BinaryData)
		fmt.Fprint(h, ptr.Deref(o.Immutable, false))
	case *corev1.Secret:
		addContent(h, o.Data)
		fmt.Fprint(h, o.Type, ptr.Deref(o.Immutable, false))
	}
	return hex.EncodeToString(h.Sum(nil))
}

func addContent[V string | []byte](h hash.Hash, data map[string]V) {
	fmt.Fprintf(h, "%d;", len(data))
	for _, key := range slices.Sorted(maps.Keys(data)) {
		fmt.Fprintf(h, "%d;%s%d;%s", len(key), key, len(data[key]), data[key])
	}
}

// Replaces reports whether have has to be deleted and created again to become want.
func Replaces(have, want client.Object) bool {
	switch h := have.(type) {
	case *corev1.ConfigMap:
		return ptr.Deref(h.Immutable, false) // another writer set it
	case *corev1.Secret:
		return h.Type != want.(*corev1.Secret).Type || ptr.Deref(h.Immutable, false)
	case *corev1.Service:
		return (h.Spec.ClusterIP == corev1.ClusterIPNone) != (want.(*corev1.Service).Spec.ClusterIP == corev1.ClusterIPNone)
	}
	return false
}

// Adopt gives have the contents of want.
func Adopt(have, want client.Object) {
	switch h := have.(type) {
	case *corev1.ConfigMap:
		w := want.(*corev1.ConfigMap)
		h.Data, h.BinaryData = w.Data, w.BinaryData
	case *corev1.Secret:
		h.Data = want.(*corev1.Secret).Data
	case *corev1.Service:
		w := want.(*corev1.Service)
		h.Spec.Ports, h.Spec.SessionAffinity = w.Spec.Ports, w.Spec.SessionAffinity
		h.Spec.Selector, h.Spec.Type = nil, corev1.ServiceTypeClusterIP
		h.Spec.PublishNotReadyAddresses = w.Spec.PublishNotReadyAddresses
		h.Spec.SessionAffinityConfig = w.Spec.SessionAffinityConfig
	case *networkingv1.NetworkPolicy:
		h.Spec = want.(*networkingv1.NetworkPolicy).Spec
	}
}
