package vk

// step is what a reconcile of a pod does.
type step uint8

const (
	// stepNothing leaves everything as it is.
	stepNothing step = iota
	// stepDrop drops what is remembered: nothing is left on either side.
	stepDrop
	// stepNotApplicable reports that the pod is not run, as its namespace is not offloaded.
	stepNotApplicable
	// stepLeave leaves alone a pod that does not tolerate the node's taint, and reports that.
	stepLeave
	// stepRefuse reports that the pod cannot run elsewhere.
	stepRefuse
	// stepWait waits for what the pod refers to.
	stepWait
	// stepHold keeps a pod at home while the provider gets no new ones of its namespace.
	stepHold
	// stepWant wants the pod, and shows the provider's status of it.
	stepWant
	// stepFinal makes the end of a pod final.
	stepFinal
	// stepFail ends a pod that is gone at the provider without having been asked.
	stepFail
	// stepUnwant asks the provider to end the pod.
	stepUnwant
	// stepFinalise deletes the local pod.
	stepFinalise
	// stepFence ends a pod that the provider has stopped as agreed, since it is silent.
	stepFence
)

// podFacts is everything on which the decision about a pod depends.
type podFacts struct {
	// Of the local pod:

	exists   bool // it is in the cache
	deleting bool // it has a deletion timestamp
	terminal bool // its phase is final
	recorded bool // its status records that the provider took it

	// Of its namespace and spec:

	tolerates  bool    // it tolerates the node's taint
	offloading ternary // whether its namespace is offloaded
	portable   bool    // it can run in another cluster
	complete   bool    // what it has to refer to is there
	closed     bool    // no new pods of its namespace are sent
	fenced     bool    // the provider is silent, and has stopped the pod as agreed

	// Of the provider:

	wanted      bool // this process wanted it
	taken       bool // the provider took it
	gone        bool // the provider reported that it is gone
	deleteAcked bool // the provider acknowledged the delete
}

// ternary is yes, no or unknown.
type ternary uint8

const (
	unknown ternary = iota
	yes
	no
)

// crossed reports whether the provider has or had the pod.
func (f podFacts) crossed() bool { return f.taken || f.recorded }

// ended reports whether the provider said that it does not have the pod.
func (f podFacts) ended() bool { return f.gone || (f.deleteAcked && !f.crossed()) }

// neverCrossed reports whether the pod was not and will not be sent.
func (f podFacts) neverCrossed() bool {
	return !f.crossed() && !f.wanted && (f.offloading == no || !f.portable)
}

func decidePod(f podFacts) step {
	switch {
	case !f.exists:
		if f.ended() || (!f.wanted && !f.taken) {
			return stepDrop
		}
		return stepUnwant
	case !f.tolerates && !f.crossed() && !f.wanted:
		// It was bound here by hand. The agent may not touch such a pod.
		return stepLeave
	case f.fenced && !f.terminal && (f.crossed() || f.wanted || f.deleting && !f.ended()):
		return stepFence
	case f.deleting:
		// A pod that ended runs nothing, so its object need not wait for a provider
		// that is away.
		if f.ended() || f.neverCrossed() || f.terminal {
			return stepFinalise
		}
		return stepUnwant
	case f.terminal:
		return stepFinal
	case f.gone:
		return stepFail
	case f.crossed() || f.wanted:
		// A pod that was sent goes on running, whatever was decided about its namespace since.
		return stepWant
	case f.offloading == unknown:
		return stepNothing
	case f.offloading == no:
		return stepNotApplicable
	case !f.portable:
		return stepRefuse
	case !f.complete:
		return stepWait
	case f.closed:
		return stepHold
	}
	return stepWant
}
