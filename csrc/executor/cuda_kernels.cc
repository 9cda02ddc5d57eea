#include "executor/cuda_kernels.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace theseus {

std::string key_of(const KernelText& text, const std::string& compiler) {
  std::string key = compiler;
  const auto add = [&key](const std::string& part) {
    key += '\n' + std::to_string(part.size()) + '\n';
    key += part;
  };
  add(text.kernel);
  add(text.text);
  for (const auto& [name, header] : text.headers) {
    add(name);
    add(header);
  }
  for (const std::string& option : text.options) add(option);
  return key;
}

cuda::KernelSource source_of(const KernelText& text) {
  cuda::KernelSource source;
  source.name = text.name;
  source.text = text.text;
  for (const auto& [name, header] : text.headers) source.headers.push_back({name, header});
  source.options = text.options;
  return source;
}

CudaKernels& CudaKernels::of(cuda::Driver& driver, const cuda::DeviceInfo& device) {
  static std::mutex& mutex = *new std::mutex;
  static auto& all = *new std::map<std::pair<cuda::Driver*, int>, CudaKernels*>;
  const std::lock_guard lock(mutex);
  CudaKernels*& kernels = all[{&driver, device.ordinal}];
  if (kernels == nullptr) kernels = new CudaKernels(driver, device, KernelFiles::of_settings());
  return *kernels;
}

CudaKernels::~CudaKernels() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

Result<const CudaKernel*> CudaKernels::interpreter(DataType type, RedOp op, device::Protocol protocol) {
  const std::string name = std::string("interpreter ") + name_of(type) + " " + name_of(op) + " " +
                           std::to_string(static_cast<int>(protocol));
  return take(name, [&] { return interpreter_text(type, op, protocol); });
}

Result<const CudaKernel*> CudaKernels::division(DataType type) {
  return take(std::string("division ") + name_of(type), [&] { return division_text(type); });
}

Result<const CudaKernel*> CudaKernels::transfer() {
  return take("transfer", [] { return transfer_text(); });
}

// One caller makes it, the others wait for that.
Result<const CudaKernel*> CudaKernels::take(const std::string& name, const std::function<KernelText()>& text) {
  std::shared_ptr<Entry> entry;
  {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<Entry>& known = entries_[name];
    if (known == nullptr) known = std::make_shared<Entry>();
    entry = known;
  }
  const std::lock_guard lock(entry->mutex);
  if (!entry->done) {
    entry->status = make(text(), entry->kernel);
    entry->done = true;
  }
  if (!entry->status.ok()) return entry->status;
  return &entry->kernel;
}

Result<cuda::KernelImage> CudaKernels::image_of(const KernelText& text) {
  Result<cuda::KernelCompiler*> compiler = driver_.compiler();
  if (!compiler.ok()) return compiler.status();
  const std::string key = key_of(text, (*compiler)->identity(device_));
  if (const std::optional<std::string> known = files_.load(key); known.has_value()) {
    return cuda::KernelImage(known->begin(), known->end());
  }
  Result<cuda::KernelImage> image = (*compiler)->compile(source_of(text), device_);
  if (!image.ok()) return image;
  compiled_.fetch_add(1, std::memory_order_relaxed);
  const Status stored = files_.store(key, {reinterpret_cast<const char*>(image->data()), image->size()});
  if (!stored.ok()) {
    THESEUS_WARN(
        "%s; the kernel will be compiled again in the next process (THESEUS_KERNEL_CACHE names another "
        "folder, or is off)",
        stored.message().c_str());
  }
  return image;
}

Status CudaKernels::make(const KernelText& text, CudaKernel& kernel) {
  Result<cuda::KernelImage> image = image_of(text);
  if (!image.ok()) return image.status();
  const int device = device_.ordinal;
  Result<cuda::Module> module = driver_.load(device, *image);
  if (!module.ok()) return module.status();
  Result<cuda::Function> function = driver_.function(device, *module, text.kernel);
  if (!function.ok()) return function.status();
  Result<cuda::FunctionInfo> info = driver_.function_info(device, *function);
  if (!info.ok()) return info.status();
  kernel.function = *function;
  kernel.shared_bytes = text.shared_bytes;
  const int most = std::min(info->max_threads > 0 ? info->max_threads : device_.max_threads, device_.max_threads);
  kernel.threads = std::min(text.threads, static_cast<uint32_t>(std::max(most, 1)));
  if (kernel.threads > 32) kernel.threads = kernel.threads / 32 * 32;
  if (text.shared_bytes > 0) {
    THESEUS_TRY(driver_.set_dynamic_shared(device, *function, static_cast<int>(text.shared_bytes)));
  }
  Result<int> blocks = driver_.occupancy(device, *function, static_cast<int>(kernel.threads), kernel.shared_bytes);
  if (!blocks.ok()) return blocks.status();
  kernel.resident = static_cast<uint32_t>(*blocks) * static_cast<uint32_t>(device_.multiprocessors);
  return {};
}

std::shared_ptr<const CudaKernels::Generated> CudaKernels::generate(const std::string& name,
                                                                    std::function<KernelText()> text) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<Generated>& known = generated_[name];
  if (known != nullptr) return known;
  known = std::make_shared<Generated>();
  jobs_.push_back({known, std::move(text), name});
  if (!thread_.joinable()) thread_ = std::thread([this] { work(); });
  changed_.notify_all();
  return known;
}

void CudaKernels::settle() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return jobs_.empty() && !busy_; });
}

void CudaKernels::work() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  pthread_setname_np(pthread_self(), "theseus-kernels");
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
    if (stopping_) return;
    const Job job = std::move(jobs_.front());
    jobs_.pop_front();
    busy_ = true;
    lock.unlock();
    // Whoever runs the plan goes on with the interpreting kernel where this fails.
    Result<const CudaKernel*> made = take("generated " + job.name, job.text);
    if (made.ok()) {
      job.target->kernel_.store(*made, std::memory_order_release);
      loaded_.fetch_add(1, std::memory_order_relaxed);
    } else {
      THESEUS_WARN("no kernel for %s, which goes on with the interpreting one: %s", job.name.c_str(),
                   made.status().message().c_str());
    }
    lock.lock();
    busy_ = false;
    changed_.notify_all();
  }
}

}  // namespace theseus
