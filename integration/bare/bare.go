// Package bare installs the chart in a control plane that has no node to run it:
// all of its objects but those that need one, and a kubeconfig with which the
// agent runs as a process of this machine, with the rights that it has in real
// life and no more.
package bare

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/integration/eventually"
)

const (
	// Namespace is where the chart is installed.
	Namespace = "entente-system"
	// account is the agent's ServiceAccount.
	account = "entente-agent"
	// tokenHours is how long the agent's kubeconfig can be used.
	tokenHours = 4
	// applyTimeout bounds applying one object: a kind takes a moment to appear
	// after its definition.
	applyTimeout = time.Minute
)

// Install applies the chart of the repository at root with an administrator's
// access, and writes the agent's kubeconfig. ENTENTE_HELM is the helm to render
// it with; default as `make` builds it.
func Install(ctx context.Context, admin *rest.Config, root, kubeconfig string) error {
	rendered, err := render(ctx, root)
	if err != nil {
		return err
	}
	objects, err := decode(rendered)
	if err != nil {
		return fmt.Errorf("read the rendered chart: %w", err)
	}
	objects = slices.DeleteFunc(objects, func(o *unstructured.Unstructured) bool {
		hook := o.GetAnnotations()["helm.sh/hook"]
		return o.GetKind() == "Deployment" || o.GetKind() == "DaemonSet" || (hook != "" && !strings.Contains(hook, "post-install"))
	})
	namespace := &unstructured.Unstructured{}
	namespace.SetAPIVersion("v1")
	namespace.SetKind("Namespace")
	namespace.SetName(Namespace)
	c, err := ctrlclient.New(admin, ctrlclient.Options{})
	if err != nil {
		return err
	}
	for _, stage := range stages(append(objects, namespace)) {
		for _, o := range stage {
			if err := apply(ctx, c, o); err != nil {
				return err
			}
		}
	}
	kube, err := kubernetes.NewForConfig(admin)
	if err != nil {
		return err
	}
	token, err := Token(ctx, kube, Namespace, account)
	if err != nil {
		return err
	}
	const name = "agent"
	return clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{name: {Server: admin.Host, CertificateAuthorityData: admin.CAData}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{name: {Token: token}},
		Contexts:       map[string]*clientcmdapi.Context{name: {Cluster: name, AuthInfo: name}},
		CurrentContext: name,
	}, kubeconfig)
}

func render(ctx context.Context, root string) ([]byte, error) {
	helm := os.Getenv("ENTENTE_HELM")
	if helm == "" {
		helm = filepath.Join(root, ".build", "bin", "helm")
	}
	cmd := exec.CommandContext(ctx, helm, "template", "entente", filepath.Join(root, "charts", "entente"), "--namespace", Namespace)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	rendered, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("render the chart (`make .build/bin/helm` builds helm): %w\n%s", err, &stderr)
	}
	return rendered, nil
}

func decode(text []byte) ([]*unstructured.Unstructured, error) {
	var out []*unstructured.Unstructured
	for d := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096); ; {
		o := &unstructured.Unstructured{}
		err := d.Decode(o)
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		if len(o.Object) > 0 {
			out = append(out, o)
		}
	}
}

// stages puts objects into an order in which they can be applied.
func stages(objects []*unstructured.Unstructured) [][]*unstructured.Unstructured {
	out := make([][]*unstructured.Unstructured, 3)
	for _, o := range objects {
		i := 1
		switch {
		case o.GetKind() == "Namespace" || o.GetKind() == "CustomResourceDefinition":
			i = 0
		case o.GroupVersionKind().Group == v1alpha1.GroupVersion.Group:
			i = 2
		}
		out[i] = append(out[i], o)
	}
	return out
}

// apply applies an object, patiently.
func apply(ctx context.Context, c ctrlclient.Client, o *unstructured.Unstructured) error {
	return eventually.Is(ctx, applyTimeout, "apply "+o.GetKind()+" "+o.GetName(), func(ctx context.Context) error {
		err := c.Apply(ctx, ctrlclient.ApplyConfigurationFromUnstructured(o.DeepCopy()), ctrlclient.FieldOwner("helm"), ctrlclient.ForceOwnership)
		if !meta.IsNoMatchError(err) && !apierrors.IsNotFound(err) {
			return eventually.Permanent(err)
		}
		return err
	})
}

// Token returns a bearer token of a ServiceAccount.
func Token(ctx context.Context, kube kubernetes.Interface, namespace, name string) (string, error) {
	seconds := int64(tokenHours * 3600)
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}
	out, err := kube.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name, request, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("token of ServiceAccount %s/%s: %w", namespace, name, err)
	}
	return out.Status.Token, nil
}
