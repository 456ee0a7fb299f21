#include "fuse/server.h"

#include <atomic>
#include <cassert>

#include "base/log.h"
#include "fuse/device.h"
#include "fuse/session.h"

namespace cairnfs::fuse {

class Server::Impl {
 public:
  Impl(std::unique_ptr<Device> device, std::unique_ptr<Session> session)
      : device_(std::move(device)), session_(std::move(session)) {}

  Status Serve(fs::FileSystem& filesystem) {
    const bool is_second = serving_.exchange(true);
    assert(!is_second);
    return session_->Serve(filesystem);
  }

  void Stop() {
    Status status = device_->Unmount(Unmounting::kUnlessBusy);
    if (!status.ok()) {
      spdlog::warn("{}; unmounting lazily", status.error().message);
      status = device_->Unmount(Unmounting::kLazily);
    }
    if (!status.ok()) spdlog::error("{}", status.error().message);
    session_->RequestStop();
  }

  bool Alive() const { return !serving_.load() || session_->Alive(); }

 private:
  std::unique_ptr<Device> device_;
  std::unique_ptr<Session> session_;
  std::atomic<bool> serving_{false};
};

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() { impl_->Stop(); }

Result<std::unique_ptr<Server>> Server::Mount(const MountOptions& options, io::BufferPool& pool) {
  CAIRNFS_ASSIGN_OR_RETURN(std::unique_ptr<Device> device, Device::Mount(options));
  SessionOptions session_options;
  session_options.receive_threads = options.receive_threads;
  session_options.max_background = options.max_background;
  session_options.read_ahead_bytes = options.read_ahead_bytes;
  session_options.passthrough = options.passthrough;
  session_options.passthrough_descriptors_max = options.passthrough_descriptors_max;
  auto session = Session::Create(*device, pool, session_options);
  if (!session.ok()) {
    Status unmounted = device->Unmount(Unmounting::kLazily);
    if (!unmounted.ok()) spdlog::error("{}", unmounted.error().message);
    return session.error();
  }
  return std::unique_ptr<Server>(new Server(std::make_unique<Impl>(std::move(device), *std::move(session))));
}

Status Server::Serve(fs::FileSystem& filesystem) { return impl_->Serve(filesystem); }
void Server::Stop() { impl_->Stop(); }
bool Server::Alive() const { return impl_->Alive(); }

}  // namespace cairnfs::fuse
