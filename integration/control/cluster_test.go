package control

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/client"
	"github.com/entente-dev/entente/integration/lab"
)

const (
	systemNamespace = "entente-system"
	fakeNodes       = 3
)

// cluster is one control plane with the chart's objects, as its administrator
// sees it, and its agent.
type cluster struct {
	config *rest.Config
	client ctrlclient.WithWatch
	kube   *kubernetes.Clientset
	*process
}

// schemeOfAll has Kubernetes' kinds and ours.
func schemeOfAll() *runtime.Scheme {
	s := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(s), v1alpha1.AddToScheme(s)); err != nil {
		panic(err) // the kinds are fixed
	}
	return s
}

func newCluster(name string, c *lab.Cluster, dir, binary string) (*cluster, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	out := &cluster{config: c.RESTConfig()}
	out.config.WarningHandler = rest.NoWarnings{}
	var err error
	if out.client, err = ctrlclient.NewWithWatch(out.config, ctrlclient.Options{Scheme: schemeOfAll()}); err != nil {
		return nil, err
	}
	if out.kube, err = kubernetes.NewForConfig(out.config); err != nil {
		return nil, err
	}
	out.process, err = newProcess(name, dir, binary)
	return out, err
}

// install applies the chart, but for what needs nodes to run, and gives the agent
// a kubeconfig of the chart's ServiceAccount: it has the rights that it has in
// real life and no more.
func (c *cluster) install(ctx context.Context, root string) error {
	helm := os.Getenv("ENTENTE_HELM")
	if helm == "" {
		helm = filepath.Join(root, ".build", "bin", "helm")
	}
	cmd := exec.CommandContext(ctx, helm, "template", "entente", filepath.Join(root, "charts", "entente"), "--namespace", systemNamespace)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	rendered, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("render the chart (`make .build/bin/helm` builds helm): %w\n%s", err, &stderr)
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
	namespace.SetName(systemNamespace)
	for _, stage := range stages(append(objects, namespace)) {
		for _, o := range stage {
			if err := c.apply(ctx, o); err != nil {
				return err
			}
		}
	}
	token, err := c.token(ctx, systemNamespace, "entente-agent")
	if err != nil {
		return err
	}
	return clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{c.name: {Server: c.config.Host, CertificateAuthorityData: c.config.CAData}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"agent": {Token: token}},
		Contexts:       map[string]*clientcmdapi.Context{"agent": {Cluster: c.name, AuthInfo: "agent"}},
		CurrentContext: "agent",
	}, c.kubeconfig)
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

// apply applies an object, patiently: a kind takes a moment to appear after its
// definition.
func (c *cluster) apply(ctx context.Context, o *unstructured.Unstructured) error {
	return until(ctx, 30*time.Second, "apply "+o.GetKind()+" "+o.GetName(), func(ctx context.Context) error {
		err := c.client.Apply(ctx, ctrlclient.ApplyConfigurationFromUnstructured(o.DeepCopy()), ctrlclient.FieldOwner("helm"), ctrlclient.ForceOwnership)
		if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
			return err
		}
		return permanent(err)
	})
}

// token returns a bearer token of a ServiceAccount.
func (c *cluster) token(ctx context.Context, namespace, name string) (string, error) {
	hours := int64(4 * 3600)
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &hours}}
	out, err := c.kube.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name, request, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("token of ServiceAccount %s/%s: %w", namespace, name, err)
	}
	return out.Status.Token, nil
}

// user makes a ServiceAccount with a ClusterRole, or with none, and returns its
// token.
func (c *cluster) user(ctx context.Context, name, role string) (string, error) {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name}}
	if err := ctrlclient.IgnoreAlreadyExists(c.client.Create(ctx, account)); err != nil {
		return "", err
	}
	if role != "" {
		err := c.client.Create(ctx, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: account.Namespace, Name: name}},
		})
		if ctrlclient.IgnoreAlreadyExists(err) != nil {
			return "", err
		}
	}
	return c.token(ctx, account.Namespace, name)
}

// admin speaks to the cluster's agent: with a bearer token, or as the cluster's
// administrator with its certificate. Close it.
func (c *cluster) admin(ctx context.Context, bearer string) (*client.Admin, error) {
	config := rest.CopyConfig(c.config)
	if bearer != "" {
		config = rest.AnonymousClientConfig(config)
		config.BearerToken = bearer
	}
	cm, err := c.kube.CoreV1().ConfigMaps(systemNamespace).Get(ctx, client.CAConfigMap, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return client.DialAdmin(ctx, client.AdminConfig{REST: config, Address: c.adminAddress, CA: []byte(cm.Data[client.CAKey])})
}

// lease makes an agent that starts not wait for the lease of one that was killed.
// How long that takes is for others to test.
func (c *cluster) dropLease(ctx context.Context) error {
	err := c.kube.CoordinationV1().Leases(systemNamespace).Delete(ctx, "entente-agent", metav1.DeleteOptions{})
	return ctrlclient.IgnoreNotFound(err)
}

// start starts the agent, unless it runs, and waits until it serves.
func (c *cluster) start(ctx context.Context) error {
	if c.running() {
		return nil
	}
	if err := c.dropLease(ctx); err != nil {
		return err
	}
	if err := c.spawn(); err != nil {
		return err
	}
	return until(ctx, time.Minute, "the agent of "+c.name+" to serve", func(ctx context.Context) error {
		if !c.running() {
			return permanent(fmt.Errorf("it ended: %s", c.lastWords(5)))
		}
		return c.ready(ctx)
	})
}

// restart kills the agent and starts it again.
func (c *cluster) restart(ctx context.Context) error {
	c.kill()
	return c.start(ctx)
}

// get reads an object by name; the namespace is that of the object.
func (c *cluster) get(ctx context.Context, name string, o ctrlclient.Object) error {
	return c.client.Get(ctx, ctrlclient.ObjectKey{Namespace: o.GetNamespace(), Name: name}, o)
}

// list lists what matches.
func list[T any, L interface {
	*T
	ctrlclient.ObjectList
}](ctx context.Context, c *cluster, opts ...ctrlclient.ListOption) (T, error) {
	var out T
	err := c.client.List(ctx, L(&out), opts...)
	return out, err
}

// permanentError ends a wait at once.
type permanentError struct{ error }

func (e permanentError) Unwrap() error { return e.error }

func permanent(err error) error {
	if err == nil {
		return nil
	}
	return permanentError{err}
}

// until waits until ok returns nil. What it said last is part of the error.
func until(ctx context.Context, limit time.Duration, what string, ok func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	begin := time.Now()
	var last error
	for {
		err := ok(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil || last == nil {
			last = err
		}
		if p, ok := errors.AsType[permanentError](err); ok {
			return fmt.Errorf("%s: %w", what, p.error)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waited %.1fs for %s: %w", time.Since(begin).Seconds(), what, last)
		case <-time.After(30 * time.Millisecond):
		}
	}
}

// sorted returns the keys of a map, sorted.
func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
