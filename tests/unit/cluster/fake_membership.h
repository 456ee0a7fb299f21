// Nodes that are there because the test says so.
#pragma once

#include <algorithm>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "base/thread_annotations.h"
#include "cluster/membership.h"

namespace cairnfs::cluster {

class FakeMembership;

// The view that all its members see. Changes reach them before the call returns.
class FakeCluster {
 public:
  ViewPtr view() const {
    MutexLock lock(mutex_);
    return view_;
  }
  void Add(const NodeInfo& node) {
    Change([&](std::vector<NodeInfo>& nodes) { nodes.push_back(node); });
  }
  void Edit(const NodeId& id, const std::function<void(NodeInfo&)>& edit) {
    Change([&](std::vector<NodeInfo>& nodes) {
      for (NodeInfo& node : nodes) {
        if (node.id == id) edit(node);
      }
    });
  }
  void Remove(const NodeId& id) {
    Change([&](std::vector<NodeInfo>& nodes) {
      std::erase_if(nodes, [&](const NodeInfo& node) { return node.id == id; });
    });
  }
  void SetState(const NodeId& id, NodeState state) {
    Edit(id, [&](NodeInfo& node) {
      node.state = state;
      node.session = state == NodeState::kUp ? node.session + 1 : 0;
    });
  }

  using Listener = std::shared_ptr<std::function<void(const ViewPtr&)>>;
  Listener Subscribe(std::function<void(const ViewPtr&)> changed) {
    auto listener = std::make_shared<std::function<void(const ViewPtr&)>>(std::move(changed));
    MutexLock lock(calling_);
    listeners_.push_back(listener);
    return listener;
  }
  void Unsubscribe(const Listener& listener) {
    MutexLock lock(calling_);
    std::erase(listeners_, listener);
  }

 private:
  void Change(const std::function<void(std::vector<NodeInfo>&)>& change) {
    MutexLock turn(calling_);
    ViewPtr view;
    {
      MutexLock lock(mutex_);
      std::vector<NodeInfo> nodes = view_->nodes;
      change(nodes);
      view = view_ = std::make_shared<const View>(std::move(nodes), view_->revision + 1);
    }
    for (const Listener& listener : listeners_) (*listener)(view);
  }

  Mutex calling_;
  mutable Mutex mutex_;
  ViewPtr view_ GUARDED_BY(mutex_) = std::make_shared<const View>();
  std::vector<Listener> listeners_ GUARDED_BY(calling_);
};

class FakeMembership final : public Membership {
 public:
  FakeMembership(FakeCluster& cluster, const NodeId& self) : cluster_(cluster), self_(self) {}
  // As this node alone sees the nodes from now on; null: as all do.
  void SetOwnView(ViewPtr view) {
    MutexLock lock(mutex_);
    own_view_ = std::move(view);
  }
  const NodeId& self() const override { return self_; }
  ViewPtr view() const override {
    MutexLock lock(mutex_);
    return own_view_ ? own_view_ : cluster_.view();
  }
  std::shared_ptr<void> OnChange(std::function<void(const ViewPtr&)> changed) override {
    auto listener = cluster_.Subscribe(std::move(changed));
    return {nullptr, [this, listener](void*) { cluster_.Unsubscribe(listener); }};
  }
  Result<Session> session() const override { return Session{"S", 1, {}, 1}; }
  Result<Session> WaitForSession(const Context&) const override { return session(); }
  bool LeaseHolds() const override { return true; }
  void OnLost(std::function<void()>) override {}
  Status Rejoin() override { return {}; }
  void ReportLost(const Session&, const Loss&) override {}
  MembershipStats stats() const override { return {}; }
  void SetFull(bool full) override {
    cluster_.Edit(self_, [&](NodeInfo& node) { node.full = full; });
  }
  Status SetDrain(const NodeId& id, Drain drain) override {
    const uint64_t revision = drain == Drain::kBegin ? cluster_.view()->revision + 1 : 0;
    cluster_.Edit(id, [&](NodeInfo& node) {
      node.drain = revision;
      node.weight = node.is_drained() ? 0 : 1;
      node.is_empty = false;
    });
    return {};
  }
  void SetEmpty(bool empty, uint64_t drain) override {
    const ViewPtr view = cluster_.view();
    const NodeInfo* self = view->Find(self_);
    if (self == nullptr || !self->is_drained() || self->drain != drain || self->is_empty == empty) return;
    cluster_.Edit(self_, [&](NodeInfo& node) { node.is_empty = node.drain == drain && empty; });
  }
  Status Replace(const NodeId&, PlaceName) override { return {}; }
  Status Remove(const NodeId& id, Removal) override {
    cluster_.Remove(id);
    return {};
  }

 private:
  FakeCluster& cluster_;
  const NodeId self_;
  mutable Mutex mutex_;
  ViewPtr own_view_ GUARDED_BY(mutex_);
};

}  // namespace cairnfs::cluster
