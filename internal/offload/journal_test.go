package offload

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	clienttesting "k8s.io/client-go/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	api "github.com/entente-dev/entente/api/v1alpha1"
)

// journal is the store of a fake cluster, with all its events. As in an API server, a resource
// version is a position in it: a list returns its own, and a watch continues from there. The
// watches of the fake client itself begin with later events: a client that lists and then watches
// would miss deletes in between, and keep the objects.
type journal struct {
	store clienttesting.ObjectTracker

	mu      sync.Mutex
	entries []entry
	// grown is closed when there is another entry.
	grown chan struct{}
}

// entry is something that happened. The resource version of the first is 1.
type entry struct {
	resource schema.GroupVersionResource
	event    watch.Event
	// before is the labels that the object had before, unless it is new.
	before labels.Set
}

var _ clienttesting.ObjectTracker = (*journal)(nil)

// newJournaled returns a client of an empty cluster.
func newJournaled(s *runtime.Scheme) client.WithWatch {
	j := &journal{
		store: clienttesting.NewObjectTracker(s, serializer.NewCodecFactory(s).UniversalDecoder()),
		grown: make(chan struct{}),
	}
	inner := fake.NewClientBuilder().WithScheme(s).WithObjectTracker(j).
		WithStatusSubresource(&api.OffloadedPod{}, &corev1.Pod{}).
		WithIndex(&corev1.Event{}, "involvedObject.kind", func(o client.Object) []string {
			return []string{o.(*corev1.Event).InvolvedObject.Kind}
		}).Build()
	return interceptor.NewClient(inner, interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			for {
				version := j.version()
				if err := c.List(ctx, list, opts...); err != nil {
					return err
				}
				// Nothing was written meanwhile, or it is listed again.
				if j.version() == version {
					list.SetResourceVersion(strconv.Itoa(version))
					return nil
				}
			}
		},
		Watch: j.watch,
	})
}

func (j *journal) version() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.entries)
}

// next returns the resource version of the next write. The lock is held.
func (j *journal) next() string { return strconv.Itoa(len(j.entries) + 1) }

// note records that an object was stored, or deleted. The lock is held.
func (j *journal) note(what watch.EventType, resource schema.GroupVersionResource, o runtime.Object, before labels.Set) {
	j.entries = append(j.entries, entry{resource: resource, event: watch.Event{Type: what, Object: o.DeepCopyObject()}, before: before})
	close(j.grown)
	j.grown = make(chan struct{})
}

// labelsOf returns the labels of a stored object.
func (j *journal) labelsOf(resource schema.GroupVersionResource, namespace, name string) (labels.Set, error) {
	o, err := j.store.Get(resource, namespace, name)
	if err != nil {
		return nil, err
	}
	m, err := meta.Accessor(o)
	if err != nil {
		return nil, err
	}
	return m.GetLabels(), nil
}

func (j *journal) Create(resource schema.GroupVersionResource, o runtime.Object, namespace string, _ ...metav1.CreateOptions) error {
	m, err := meta.Accessor(o)
	if err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	m.SetResourceVersion(j.next())
	m.SetUID(types.UID("fake-" + j.next()))
	if err := j.store.Create(resource, o, namespace); err != nil {
		m.SetUID("")
		return err
	}
	j.note(watch.Added, resource, o, nil)
	return nil
}

func (j *journal) Update(resource schema.GroupVersionResource, o runtime.Object, namespace string, _ ...metav1.UpdateOptions) error {
	m, err := meta.Accessor(o)
	if err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	before, err := j.labelsOf(resource, namespace, m.GetName())
	if err != nil {
		return err
	}
	m.SetResourceVersion(j.next())
	if err := j.store.Update(resource, o, namespace); err != nil {
		return err
	}
	j.note(watch.Modified, resource, o, before)
	return nil
}

func (j *journal) Patch(resource schema.GroupVersionResource, o runtime.Object, namespace string, _ ...metav1.PatchOptions) error {
	return j.Update(resource, o, namespace)
}

func (j *journal) Delete(resource schema.GroupVersionResource, namespace, name string, _ ...metav1.DeleteOptions) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	o, err := j.store.Get(resource, namespace, name)
	if err != nil {
		return err
	}
	m, err := meta.Accessor(o)
	if err != nil {
		return err
	}
	if err := j.store.Delete(resource, namespace, name); err != nil {
		return err
	}
	m.SetResourceVersion(j.next())
	j.note(watch.Deleted, resource, o, m.GetLabels())
	return nil
}

func (j *journal) Get(resource schema.GroupVersionResource, namespace, name string, _ ...metav1.GetOptions) (runtime.Object, error) {
	return j.store.Get(resource, namespace, name)
}

func (j *journal) List(resource schema.GroupVersionResource, kind schema.GroupVersionKind, namespace string, _ ...metav1.ListOptions) (runtime.Object, error) {
	return j.store.List(resource, kind, namespace)
}

// Nothing here uses the other requests of the fake client.
var errNotJournaled = errors.New("the fake cluster cannot do that")

func (j *journal) Add(runtime.Object) error { return errNotJournaled }

func (j *journal) Apply(schema.GroupVersionResource, runtime.Object, string, ...metav1.PatchOptions) error {
	return errNotJournaled
}

func (j *journal) Watch(schema.GroupVersionResource, string, ...metav1.ListOptions) (watch.Interface, error) {
	return nil, errNotJournaled
}

// since returns the events after a resource version, and a channel that is closed when there are
// more.
func (j *journal) since(version int) ([]entry, <-chan struct{}) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.entries[version:], j.grown
}

// watch sends the events after a resource version in one namespace, or in all. It supports label
// selectors and, like the fake client, no others.
func (j *journal) watch(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) (watch.Interface, error) {
	kind, err := apiutil.GVKForObject(list, c.Scheme())
	if err != nil {
		return nil, err
	}
	kind.Kind = strings.TrimSuffix(kind.Kind, "List")
	resource, _ := meta.UnsafeGuessKindToResource(kind)
	o := (&client.ListOptions{}).ApplyOptions(opts)
	if o.LabelSelector == nil {
		o.LabelSelector = labels.Everything()
	}
	if o.Raw == nil {
		return nil, errors.New("the fake cluster watches from a resource version only")
	}
	version, err := strconv.Atoi(o.Raw.ResourceVersion)
	if err != nil {
		return nil, fmt.Errorf("watch from resource version: %w", err)
	}
	out := make(chan watch.Event)
	w := watch.NewProxyWatcher(out)
	go func() {
		defer close(out)
		for {
			entries, grown := j.since(version)
			version += len(entries)
			for _, e := range entries {
				event, ok := e.seen(resource, o.Namespace, o.LabelSelector)
				if !ok {
					continue
				}
				if _, ok := list.(*metav1.PartialObjectMetadataList); ok {
					event.Object = metadataOf(event.Object, kind)
				}
				select {
				case out <- event:
				case <-w.StopChan():
					return
				case <-ctx.Done():
					return
				}
			}
			select {
			case <-grown:
			case <-w.StopChan():
				return
			case <-ctx.Done():
				return
			}
		}
	}()
	return w, nil
}

// metadataOf returns the object of an event for a watch of metadata.
func metadataOf(o runtime.Object, kind schema.GroupVersionKind) runtime.Object {
	m, err := meta.Accessor(o)
	if err != nil {
		panic(err) // it was stored
	}
	out := meta.AsPartialObjectMetadata(m)
	out.SetGroupVersionKind(kind)
	return out
}

// seen returns the event for a watch with a selector, to which an object that no longer matches is
// deleted.
func (e entry) seen(resource schema.GroupVersionResource, namespace string, s labels.Selector) (watch.Event, bool) {
	m, err := meta.Accessor(e.event.Object)
	if err != nil || e.resource != resource || namespace != "" && m.GetNamespace() != namespace {
		return watch.Event{}, false
	}
	out := watch.Event{Object: e.event.Object.DeepCopyObject()}
	was, is := e.event.Type != watch.Added && s.Matches(e.before), e.event.Type != watch.Deleted && s.Matches(labels.Set(m.GetLabels()))
	switch {
	case was && is:
		out.Type = watch.Modified
	case is:
		out.Type = watch.Added
	case was:
		out.Type = watch.Deleted
	}
	return out, was || is
}
