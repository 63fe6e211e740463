package placement

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"

	admissionv1 "k8s.io/api/admission/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/entente-dev/entente/api/v1alpha1"
)

// Path is where the webhook is served.
const Path = "/placement"

// Webhook serves the API server's AdmissionReviews (admission.k8s.io/v1) of pods that are created, and of DaemonSets. It
// allows all of them: one about which it cannot decide stays as it is. It does not authenticate its callers, as API servers do
// not prove their identity by default: a caller can learn how a namespace is offloaded, and nothing else.
type Webhook struct {
	// Offloading returns the NamespaceOffloading of a namespace; nil if it has none.
	Offloading func(ctx context.Context, namespace string) (*v1alpha1.NamespaceOffloading, error)
	// KeptOff, if it is not nil, is called for each DaemonSet that is changed to keep its pods off virtual nodes, before
	// the API server stores it. It must not block.
	KeptOff func(namespace, name string)
	Log     *slog.Logger
}

// ServeHTTP implements http.Handler.
func (w *Webhook) ServeHTTP(out http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost || r.URL.Path != Path {
		http.Error(out, "the only method is POST "+Path+"", http.StatusNotFound)
		return
	}
	var review admissionv1.AdmissionReview
	if err := json.NewDecoder(http.MaxBytesReader(out, r.Body, maxReview)).Decode(&review); err != nil {
		status := http.StatusBadRequest
		if tooLarge := new(http.MaxBytesError); errors.As(err, &tooLarge) {
			status = http.StatusRequestEntityTooLarge
		}
		http.Error(out, "this is not an AdmissionReview", status)
		return
	}
	if review.Request == nil {
		http.Error(out, "the AdmissionReview has no request", http.StatusBadRequest)
		return
	}
	response := &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
	patch, err := w.decide(r.Context(), review.Request)
	switch {
	case err != nil:
		w.Log.Warn("an object is admitted without placement", "kind", review.Request.Kind.Kind, "namespace", review.Request.Namespace, "err", err)
	case len(patch) > 0:
		kind := admissionv1.PatchTypeJSONPatch
		if response.Patch, err = json.Marshal(patch); err != nil {
			http.Error(out, "the patch cannot be written", http.StatusInternalServerError)
			return
		}
		response.PatchType = &kind
	}
	out.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(out).Encode(admissionv1.AdmissionReview{TypeMeta: review.TypeMeta, Response: response})
}

func (w *Webhook) decide(ctx context.Context, r *admissionv1.AdmissionRequest) ([]Operation, error) {
	switch {
	case r.SubResource != "":
		return nil, nil
	case r.Operation == admissionv1.Create && r.Kind == metav1.GroupVersionKind{Version: "v1", Kind: "Pod"}:
		return w.placePod(ctx, r)
	case (r.Operation == admissionv1.Create || r.Operation == admissionv1.Update) && r.Kind == metav1.GroupVersionKind(appsv1.SchemeGroupVersion.WithKind("DaemonSet")):
		return w.keepOff(r)
	}
	return nil, nil
}

func (w *Webhook) placePod(ctx context.Context, r *admissionv1.AdmissionRequest) ([]Operation, error) {
	offloading, err := w.Offloading(ctx, r.Namespace)
	if err != nil || offloading == nil {
		return nil, err
	}
	var pod corev1.Pod
	if err := json.Unmarshal(r.Object.Raw, &pod); err != nil {
		return nil, fmt.Errorf("read the pod: %w", err)
	}
	return Decide(&pod, offloading), nil
}

func (w *Webhook) keepOff(r *admissionv1.AdmissionRequest) ([]Operation, error) {
	var set, was appsv1.DaemonSet
	old := &was
	if err := json.Unmarshal(r.Object.Raw, &set); err != nil {
		return nil, fmt.Errorf("read the DaemonSet: %w", err)
	}
	if r.Operation == admissionv1.Create {
		old = nil
	} else if err := json.Unmarshal(r.OldObject.Raw, old); err != nil {
		return nil, fmt.Errorf("read the DaemonSet as it was: %w", err)
	}
	patch := KeepOff(old, &set)
	// A name that the API server generates is not known yet.
	if len(patch) > 0 && w.KeptOff != nil && set.Name != "" && !ptr.Deref(r.DryRun, false) {
		w.KeptOff(r.Namespace, set.Name)
	}
	return patch, nil
}
